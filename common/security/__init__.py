"""TLS 1.3, checks of certificates, certificates for pilots, and fresh keys."""
