"""A stand-in for the NVIDIA driver's library; see README.md."""
