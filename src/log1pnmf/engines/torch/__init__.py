"""The half-step on a CUDA card, in Triton and PyTorch."""
