"""The gRPC server: who may fetch what, how much, and how calls end."""
