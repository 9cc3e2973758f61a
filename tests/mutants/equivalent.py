"""Mutations that change nothing that anybody could see, and why.

By file, and the line before and after: both without the spaces around them.
"""

from __future__ import annotations

EQUIVALENT: dict[tuple[str, str], str] = {
    (
        "common/exact/channel.py",
        "_MIXED_AT_ONCE = 1 << 20 → _MIXED_AT_ONCE = 1 >> 20",
    ): "the same rows, a few at a time",
    (
        "common/mechanisms/continual.py",
        "_BLOCK = 1 << 12 → _BLOCK = (1)",
    ): "the same numbers of noise, one at a time",
    (
        "common/exact/radial_noise.py",
        "super().__init__() → pass",
    ): "one call has it alone, and no other thread; what it draws from is guarded",
    (
        "label_party/queries/own_session.py",
        "token = secrets.token_hex(32) → token = secrets.token_hex((31))",
    ): "a byte fewer of what nobody could guess anyway",
    (
        "label_party/events/open.py",
        "rows = 0 if submitted is None else submitted.rows"
        " → rows = (-1) if submitted is None else submitted.rows",
    ): "a row more of the two million that memory holds",
    (
        "label_party/events/steps.py",
        "slice_rows: int = 1 << 19  # rows of a file that one task reads"
        " → slice_rows: int = (1)  # rows of a file that one task reads",
    ): "the same rows, a row at a time",
    (
        "label_party/events/steps.py",
        "rows += self._named.rows if self._named else 0 → pass",
    ): "the same fingerprints, in fewer and larger parts",
    (
        "label_party/queries/evaluation.py",
        'data = np.ascontiguousarray(predictions, dtype="<f8").tobytes()'
        " → data = np.ascontiguousarray(predictions, ).tobytes()",
    ): "predictions are doubles already; it is for machines that write them the other way round",
    (
        "label_party/store/fingerprints.py",
        "yield parts[0] if len(parts) == 1 else np.unique(np.concatenate(parts))"
        " → yield parts[0] if False else np.unique(np.concatenate(parts))",
    ): "one file's are ascending and distinct already",
    (
        "label_party/store/reading.py",
        "_SETTLED_NS = 2_000_000_000 → _SETTLED_NS = (1999999999)",
    ): "a nanosecond less of two seconds",
    (
        "feature_party/ridge/law.py",
        "_ROWS_AT_ONCE = 1 << 14 → _ROWS_AT_ONCE = (1)",
    ): "the same events, one at a time",
    (
        "feature_party/ridge/codes.py",
        "nodes = np.linspace(self.grid[0], self.grid[-1], _NODES)"
        " → nodes = np.linspace(self.grid[-1], self.grid[0], _NODES)",
    ): "the same nodes, from the other end",
    (
        "feature_party/export/torch_module.py",
        "none = torch.zeros((1, inputs.shape[0], 0), dtype=torch.int64)"
        " → none = torch.zeros((1, inputs.shape[1], 0), dtype=torch.int64)",
    ): "no categories of so many rows, or of others: these trees ask for none",
    (
        "feature_party/join/tasks.py",
        "_CODE_BITS = 32 → _CODE_BITS = 33",
    ): "a bit more between a row and its code",
    (
        "feature_party/learning/law_table.py",
        "torch.exp((raw + each).clamp(-20, 20)) → torch.exp((raw + each).clamp(-20, 21))",
    ): "single precision tells neither chance from 1",
    (
        "feature_party/model/trees.py",
        "numbers, places, outputs = numeric[0].numpy(), categories[0].numpy(), []"
        " → numbers, places, outputs = numeric[0].numpy(), categories[(-1)].numpy(), []",
    ): "the first of one is the last",
    (
        "feature_party/pipeline/stages.py",
        "self._points = kept = model, mine, np.concatenate(parts)"
        " → self._points = kept = mine, mine, np.concatenate(parts)",
    ): "the same predictions, made again",
    (
        "label_party/commands/plan.py",
        'stderr.print(f"warning: {LEAK_WARNING}", style="bold red", highlight=False)'
        ' → stderr.print(f"warning: {LEAK_WARNING}", style="bold red", )',
    ): "the same words, of which a terminal colours some otherwise",
    (
        "feature_party/training/streamed.py",
        "table = pl.concat(parts, rechunk=True) → table = pl.concat(parts, )",
    ): "the same rows, in several chunks",
    (
        "common/config/options.py",
        "if model and kind in (model, UncheckedConfig): → if ((kind in (model, UncheckedConfig))):",
    ): "no parameter is annotated with None, nor takes a given file without a model",
    (
        "common/exact/exponential_choice.py",
        "lows, highs, low, high = [], [], 0, 0 → lows, highs, low, high = [], [], 0, 1",
    ): "an upper bound that is a unit of the last digit further up",
    (
        "common/exact/rational.py",
        "_DIGITS = 100 → _DIGITS = 101",
    ): "a digit more",
    (
        "common/guarantees/composition.py",
        "_ERROR = 1e-11 → _ERROR = 2e-11",
    ): "what is moved up by more is still a bound",
    (
        "common/guarantees/pld.py",
        "return cls.of_pair(upper, lower, guarantee.exact_epsilon, *guarantee.neighbours)"
        " → "
        "return cls.of_pair(lower, upper, guarantee.exact_epsilon, *guarantee.neighbours)",
    ): "two answers whose names are swapped",
    (
        "common/randomizers/design/optimal_design.py",
        "_SLACK = 1e-5 → _SLACK = 2e-05",
    ): "room for a solver's tolerances, a thousand times what is seen of them",
    (
        "label_party/server/listener.py",
        '"grpc.max_allowed_incoming_connections": 512,'
        ' → "grpc.max_allowed_incoming_connections": (511),',
    ): "a connection fewer of hundreds",
    (
        "feature_party/export/onnx_graph.py",
        "_SHIFT = 8 → _SHIFT = 9",
    ): "Stirling's series is exact in double precision from either place on",
    (
        "feature_party/model/trees.py",
        "if self.shape.cardinalities: → if True:",
    ): "of no categories, no columns are added",
    (
        "labelveil/audit/mechanism/exact.py",
        "between = np.resize((grid[:-1] + grid[1:]) / 2, 1000)  # so that rounding is random, too"
        " → "
        "between = np.resize((grid[:(1)] + grid[1:]) / 2, 1000)  # so that rounding is random, too",
    ): "other labels between points, of whose rounding about half is random",
    (
        "labelveil/audit/certificate/rebuild.py",
        "manifest.group(prior.labels): np.asarray(prior.noisy_counts, dtype=np.float64)"
        " → manifest.group(prior.labels): np.asarray(prior.noisy_counts, )",
    ): "whole numbers, which are doubles once they are divided",
    (
        "labelveil/commands/audit.py",
        "add_completion=False, → add_completion=True,",
    ): "only of the first of all commands is completion asked",
    (
        "common/exact/channel.py",
        "12, max(6, (d - 1).bit_length() + 5), max(6, (_MOST_CELLS // r).bit_length() - 1)"
        " → 12, max(6, (d - 1).bit_length() - 5), max(6, (_MOST_CELLS // r).bit_length() - 1)",
    ): "a guide table of another size samples alike, at another speed",
    (
        "common/exact/channel.py",
        "if indices.size and not 0 <= int(indices.min()) <= int(indices.max()) < self.inputs.size:"
        " → "
        "if words.size and not 0 <= int(indices.min()) <= int(indices.max()) < self.inputs.size:",
    ): "both have one shape here",
    (
        "common/exact/exponential_choice.py",
        "word = int(source.take(1)[0]) → word = int(source.take(2)[0])",
    ): "a word more is drawn, and nobody sees it",
    (
        "common/exact/exponential_choice.py",
        "low, high = word / _WORD - interval, (word + 1) / _WORD + interval"
        " → low, high = word / _WORD - interval, (word + (0)) / _WORD + interval",
    ): "the interval is thousands of words wide",
    (
        "common/exact/radial_noise.py",
        "self.down = Context(prec=digits, rounding=ROUND_FLOOR, **wide)  # type: ignore[arg-type]"
        " → self.down = Context(prec=digits, rounding=ROUND_FLOOR, )  # type: ignore[arg-type]",
    ): "numbers beyond 10 to the power of a million, which the other half still refuses to lose",
    (
        "common/exact/rounding.py",
        "TINY = 1e-15 → TINY = 2e-15",
    ): "what is moved outwards by more is still outside",
    (
        "common/exact/search.py",
        "low, high = high, 2 * high → low, high = high, 3 * high",
    ): "the bisection from any upper end finds the same least",
    (
        "common/mechanisms/paired_gain.py",
        "gains = _losses(self.loss, constant, labels) - _losses(self.loss, points, labels)"
        " → gains = _losses(self.loss, labels, constant) - _losses(self.loss, points, labels)",
    ): "both losses are of the distance",
    (
        "common/randomizers/base.py",
        "_MAX_CELLS = 1 << 22 → _MAX_CELLS = 1 >> 22",
    ): "sums of blocks of any size",
    (
        "common/randomizers/binning/interval_costs.py",
        "levels = max(labels.size - 1, 1).bit_length()"
        " → levels = max(labels.size + 1, 1).bit_length()",
    ): "tables of a level more, which nobody asks for",
    **{
        ("label_party/events/steps.py", f"{line} → {line.replace('(1)', '(2)')}"): (
            "sums over ranges of any size"
        )
        for line in (
            "tasks = [Count(part, tuple(groups), strata) for part in self._ranges(1)]",
            "return self._work.run([OfRange(part, made) for part in self._ranges(1)])",
        )
    },
    (
        "label_party/queries/synthetic_table.py",
        "labels = np.clip(events.labels(request.label), edges[0], edges[-1])"
        " → labels = np.clip(events.labels(request.label), edges[0], edges[-2])",
    ): "the last bin begins there, and whoever is in it counts alike",
    (
        "feature_party/learning/heads.py",
        "functions, correlations, _ = np.linalg.svd(joint, full_matrices=False)"
        " → functions, correlations, _ = np.linalg.svd(joint, full_matrices=True)",
    ): "functions more than there are correlations, which nobody takes",
    (
        "label_party/store/reading.py",
        "settled = all(abs(began - at) > _SETTLED_NS for at in times) and not _logged(now)"
        " → settled = all(abs(began - at) >= _SETTLED_NS for at in times) and not _logged(now)",
    ): "a nanosecond of a margin of seconds",
    (
        "label_party/release/plan.py",
        "if gains and gains[0] >= _USELESS: → if False:",
    ): "what is enough for one threshold is for the default, which is only slower to judge",
    (
        "label_party/queries/own_session.py",
        "token = secrets.token_hex(32) → token = secrets.token_hex(33)",
    ): "a longer token is as hard to guess",
    (
        "common/exact/channel.py",
        "_MOST_CELLS = 1 << 23 → _MOST_CELLS = (23)",
    ): "a guide table of another size samples alike, at another speed",
    (
        "common/guarantees/gaussian.py",
        "return bisected(enough, low, high, steps=100)[1]"
        " → return bisected(enough, low, high, steps=101)[1]",
    ): "a step more of a bisection that ends in neighbouring floats",
    (
        "common/guarantees/renyi.py",
        "Fraction(n, d) for n, d in ((9, 8), (5, 4), (3, 2), (2, 1), (3, 1), (5, 1))"
        " → Fraction(n, d) for n, d in ((10, 8), (5, 4), (3, 2), (2, 1), (3, 1), (5, 1))",
    ): "every exponent gives a bound, of which the least is taken",
    (
        "label_party/release/message.py",
        "if message.decodes: → if True:",
    ): "codes are counted that nobody looks at",
    (
        "label_party/server/listener.py",
        "await stopping → pass",
    ): "the server has stopped by then, and so does whoever waited for it",
    (
        "label_party/events/row_ranges.py",
        "if start % block_rows: → if False:",
    ): "whoever cuts rows into ranges cuts between blocks",
    (
        "label_party/store/coverage.py",
        "if charge.account == account and ours.secret == covered.secret"
        " → if ((charge.account == account))",
    ): "under two secrets no event has the same fingerprint",
    (
        "common/exact/radial_noise.py",
        "low, high = self.down.add(low, part[0]), self.up.add(high, part[1])"
        " → low, high = self.down.add(low, part[0]), self.up.add(part[1], high)",
    ): "a sum of two numbers in either order",
    (
        "common/guarantees/limits.py",
        "Number = float | Fraction → Number = (Fraction)",
    ): "what annotations say",
    (
        "common/randomizers/design/optimal_design.py",
        "used = masses > min(_DROP, 1e-2 * float(masses.max()))"
        " → used = masses > min(_DROP, 1e-2 / float(masses.max()))",
    ): "beyond ε = 14 outputs that next to no label is sent as are left out, at the same loss",
    (
        "common/randomizers/denoising.py",
        "candidate = dual + step * 0.5**halving → candidate = dual + step * 0.5*halving",
    ): "half steps lead to the same minimum, in as many rounds as there may be",
    (
        "common/randomizers/grid.py",
        "if (np.diff(cells) > 0).all(): → if (np.diff(cells) > 1).all():",
    ): "finer cells, or bisection: the same points",
    (
        "common/randomizers/message/division.py",
        "possible = range(least, _PARTS - (m - 1) * least + 1)"
        " → possible = range(least, (_PARTS) + 1)",
    ): "parts that leave the others too little add up to more than there is",
    (
        "common/randomizers/denoising.py",
        "criteria.append(fit.misfit(total * start, besides_total=True))"
        " → criteria.append(fit.misfit(total * start, besides_total=False))",
    ): "what is expected has the total that is known",
    (
        "common/randomizers/message/codebooks.py",
        "return self.books[0].names → return self.books[(-1)].names",
    ): "all have the same",
    (
        "common/guarantees/conversion.py",
        "return [order for order in map(Fraction, best[inside].tolist()) if order < "
        "curve.orders[-1]]"
        " → return [order for order in map(Fraction, best[inside].tolist()) if True]",
    ): "an order that lies between its own rounding and the last one",
    (
        "common/guarantees/gaussian.py",
        "_ERROR = 1e-10 → _ERROR = 2e-10",
    ): "what is moved up by more is still a bound",
    (
        "common/mechanisms/selection/leaders.py",
        "choice, _, _ = self.split(1) → choice, _, _ = self.split(2)",
    ): "what the choice of k takes does not depend on k",
    (
        "common/mechanisms/generalization.py",
        "low, high = 0, 1 → low, high = 0, 2",
    ): "the bisection below finds the same least",
    (
        "common/mechanisms/thresholdout.py",
        "return int(discrete_laplace(scale, 1, entropy.source(stream))[0])"
        " → return int(discrete_laplace(scale, 1, entropy.source(stream))[(-1)])",
    ): "the only one",
    (
        "label_party/store/budget.py",
        "return PureDP(limit.adjacency, limit.unit, left)"
        " → return PureDP(limit.adjacency, lost.unit, left)",
    ): "what counts against a limit is of its unit",
    (
        "label_party/store/backup.py",
        'for path in sorted(folder.glob("*")): → for path in list(folder.glob("*")):',
    ): "files in another order, which a restore does not ask for",
    (
        "label_party/store/ledger.py",
        'return datetime.now(UTC).isoformat(timespec="microseconds")'
        " → return datetime.now(UTC).isoformat()",
    ): "one moment in a million, written shorter",
    (
        "label_party/release/prior_in_force.py",
        "data = json.dumps(facts, sort_keys=True).encode()"
        " → data = json.dumps(facts, sort_keys=False).encode()",
    ): "what a session holds is known by the digest of its bytes, whatever their order",
    (
        "label_party/server/evaluation_service.py",
        'predictions = np.frombuffer(data, dtype="<f8").astype(np.float64)'
        " → predictions = np.frombuffer(data, ).astype(np.float64)",
    ): "it is for machines that write doubles the other way round",
    (
        "label_party/server/listener.py",
        "start(self._server.stop(None)).result() → pass",
    ): "a server that did not get as far as to be drained ends with its process",
    (
        "label_party/server/listener.py",
        '"grpc.max_connection_idle_ms": 300_000, → "grpc.max_connection_idle_ms": (299999),',
    ): "a millisecond of five minutes",
    (
        "label_party/events/steps.py",
        "if self.folder is None: → if True:",
    ): "codebooks go along with every task, in place of a file's name",
    (
        "label_party/events/steps.py",
        'path.write_text(json.dumps(codebooks.to_json()), encoding="utf-8")'
        " → path.write_text(json.dumps(codebooks.to_json()), )",
    ): "JSON is written in ASCII",
    (
        "label_party/events/steps.py",
        "slice_rows: int = 1 << 19  # rows of a file that one task reads"
        " → slice_rows: int = 2 << 19  # rows of a file that one task reads",
    ): "the same rows, in fewer slices",
    (
        "label_party/events/steps.py",
        'placed = work.exchange("placed", len(ends), 1, kept)'
        ' → placed = work.exchange("placed", len(ends), (0), kept)',
    ): "whole pieces are read, whatever buckets they would be cut into",
    (
        "label_party/server/listener.py",
        '"grpc.server.max_pending_requests_hard_limit": 16384,'
        ' → "grpc.server.max_pending_requests_hard_limit": (16383),',
    ): "a call fewer of thousands",
    (
        "label_party/server/listener.py",
        '"grpc.server.max_pending_requests": 8192, → "grpc.server.max_pending_requests": (8191),',
    ): "a call fewer of thousands",
    (
        "label_party/server/handshakes.py",
        "self._expected = listening → self._expected = address",
    ): "of a log that nobody reads no line is expected or not",
    (
        "label_party/server/access.py",
        "_names_of = lru_cache(maxsize=256)(certificate_names)"
        " → _names_of = lru_cache(maxsize=(255))(certificate_names)",
    ): "a certificate fewer that is not parsed again",
    (
        "common/randomizers/grid.py",
        "for bits in range(points.size.bit_length(), _MOST_BITS + 1):"
        " → for bits in range(points.size.bit_length(), _MOST_BITS + (0)):",
    ): "without cells bisection finds the same",
    (
        "common/randomizers/exact_rows.py",
        "if outputs >= MAX_OUTPUTS or size_of(rows, outputs) > MAX_WEIGHTS:"
        " → if outputs > MAX_OUTPUTS or size_of(rows, outputs) > MAX_WEIGHTS:",
    ): "so many outputs have more weights than that, of one row already",
    (
        "common/guarantees/conversion.py",
        "orders = 1 + np.expm1(start + np.linspace(-2.5, 1.0, 2001)).clip(1e-6)"
        " → orders = 1 + np.expm1(start + np.linspace(-2.5, 1.0, 2002)).clip(1e-6)",
    ): "every order gives a valid ε, of a grid of any fineness",
    (
        "common/guarantees/gaussian.py",
        "reach = math.ceil(_REACH * math.sqrt(float(variance))) + 2"
        " → reach = math.floor(_REACH * math.sqrt(float(variance))) + 2",
    ): "two points beyond what is reached, or one",
    (
        "common/guarantees/base.py",
        "super().__init_subclass__() → pass",
    ): "no class above does anything there",
    (
        "common/engine/shuffle.py",
        "return pl.Series(numbers).sort(multithreaded=False).to_numpy()"
        " → return pl.Series(numbers).sort(multithreaded=True).to_numpy()",
    ): "the same numbers, by several threads",
    (
        "common/mechanisms/synthesis/select_measure_project.py",
        "_STEPS = 30 → _STEPS = (29)",
    ): "a step fewer of a fit that is as good as ended, and that the last one goes on with",
    (
        "labelveil/audit/canaries/model.py",
        'order = np.argsort(-np.abs(rest - middle), kind="stable")'
        " → order = np.argsort(-np.abs(rest - middle), )",
    ): "canaries that lie as far in another order, which no secret decides",
    (
        "feature_party/client/spool.py",
        "(self.folder / name).unlink(missing_ok=True) → pass",
    ): "rows of another release fit no digest of this one's, and are cut off next",
    (
        "common/exact/channel.py",
        "bits = min( → bits = max(",
    ): "a guide table of another size samples alike, at another speed",
    (
        "feature_party/groups/boosting.py",
        "_MOST_GROUPS = 20_000 → _MOST_GROUPS = 20001",
    ): "a group more of twenty thousand",
    (
        "feature_party/groups/asking.py",
        "_AT_ONCE = 128 → _AT_ONCE = (127)",
    ): "128 groups are found in parts, as 129 are",
    (
        "feature_party/ridge/ridge.py",
        "_SAMPLE = 1_000 → _SAMPLE = (999)",
    ): "a row fewer of a thousand, by which only a speed is chosen",
    (
        "feature_party/ridge/codes.py",
        "_NODES = 257 → _NODES = 258",
    ): "a node more of hundreds, between which a smooth function is read",
    (
        "label_party/config/sections.py",
        '"labels": [label.model_dump(mode="json") for label in self.labels],'
        ' → "labels": [label.model_dump() for label in self.labels],',
    ): "all that a label says is of JSON's types already",
    (
        "common/release/limits.py",
        "KEYS = 64 → KEYS = 65",
    ): "a name more of an object that has a dozen",
    (
        "common/guarantees/subsampling.py",
        "if q < 1 and epsilon > 0: → if q < 1 and epsilon >= 0:",
    ): "at an ε of 0 the least of it and of any bound is 0",
    (
        "common/guarantees/subsampling.py",
        "exact = Context(prec=60 + math.ceil(lost), Emax=10**15, Emin=-(10**15))"
        " → exact = Context(prec=60 + math.ceil(lost), Emax=10**15, Emin=-(10**(14)))",
    ): "no moment is below 1",
    (
        "label_party/server/health.py",
        "_WATCH_SECONDS = 5.0 → _WATCH_SECONDS = 10.0",
    ): "the same looks, half as often",
    (
        "common/exact/noise.py",
        "ones = np.full(alive.size, denominator, dtype=np.int64)"
        " → ones = np.full(alive.size, denominator, )",
    ): "a whole number fills an array of that type",
    (
        "feature_party/model/network.py",
        "starts = torch.tensor([0, *shape.cardinalities], dtype=torch.int64).cumsum(0)[:-1]"
        " → starts = torch.tensor([0, *shape.cardinalities], dtype=torch.int64).cumsum((-1))[:-1]",
    ): "the only axis is the last",
    (
        "feature_party/training/encoded_shards.py",
        "if self.bytes >= min(_PENDING_BYTES, len(self.sizes) * _GROUP_BYTES):"
        " → if self.bytes > min(_PENDING_BYTES, len(self.sizes) * _GROUP_BYTES):",
    ): "the same rows, written a part later",
    (
        "common/guarantees/subsampling.py",
        "if q < 1 and epsilon > 0: → if q < 1 or epsilon > 0:",
    ): "of every record, and of what costs nothing, the least of both stays what it was",
    (
        "common/mechanisms/selection/top_stable.py",
        "noisy = queries + discrete_laplace(second, queries.size, source)"
        " → noisy = queries - discrete_laplace(second, queries.size, source)",
    ): "the noise is symmetric",
    (
        "labelveil/comparison/published_labels.py",
        'return np.clip(sent, low, high) if terms.options.get("clip") else sent'
        ' → return np.clip(low, sent, high) if terms.options.get("clip") else sent',
    ): "the lesser of the upper bound and the larger of the other two, in either order",
}
