#!/bin/sh
# Rebuilds the fixtures in this folder; needs nvcc 13.0.
set -e
cd "$(dirname "$0")"
for arch in 75 90 90a 100f; do nvcc -cubin -arch=sm_$arch -o kernels_$arch.cubin kernels.cu; done
nvcc -cubin -arch=sm_90 -o runtime_90.cubin runtime.cu
for name in functions reports; do nvcc -arch=sm_90 -rdc=true -dc -o $name.o $name.cu && nvlink -arch=sm_90 $name.o -o ${name}_90.cubin && rm $name.o; done
nvcc -ptx -arch=compute_80 -o kernels_80.ptx kernels.cu
nvcc -fatbin -compress-mode=size -o kernels_zstd.fatbin -gencode arch=compute_75,code=sm_75 -gencode arch=compute_90,code=sm_90 \
  -gencode arch=compute_90a,code=[sm_90a,compute_90a] -gencode arch=compute_100f,code=sm_100f -gencode arch=compute_80,code=compute_80 kernels.cu
nvcc -fatbin -compress-mode=speed -o kernels_speed.fatbin -gencode arch=compute_86,code=sm_86 kernels.cu
