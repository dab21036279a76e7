"""The half-step in PyTorch, with Triton kernels on a CUDA card."""
