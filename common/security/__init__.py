"""TLS 1.3, checks of certificates, and certificates for pilots."""
