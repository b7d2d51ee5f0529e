"""Attention kernels, and the choice among them.

  choice    which kernel computes a model's attention on a platform, and why
  cudnn     NVIDIA GPUs: cuDNN's fused attention
  masked_cudnn  cudnn under a mask alone, without its gradient
  triton    NVIDIA GPUs: any mask and bias, and dropout; opt-in
  splash    TPUs: masks of segments and causality
  flash     TPUs: any mask and bias, and dropout
  dropout   the draws that triton and flash make within their programs

XLA's attention, which the others must equal, is models/attention.py.
"""
