"""What both parties need: mechanisms, guarantees, the release format. Imports neither party."""

from common.security import tls as _tls  # noqa: F401  before gRPC is imported anywhere
