// ResNet-50 (He et al. 2016; the stride sits in the 3x3 convolution, as in torchvision), with
// torch::nn.
#pragma once

#include <torch/torch.h>

#include <string>
#include <vector>

namespace examples {

inline torch::nn::Conv2d convolution(int64_t inputs, int64_t outputs, int64_t kernel,
                                     int64_t stride = 1) {
  return torch::nn::Conv2d(torch::nn::Conv2dOptions(inputs, outputs, kernel)
                               .stride(stride)
                               .padding(kernel / 2)
                               .bias(false));
}

struct BottleneckImpl : torch::nn::Module {
  BottleneckImpl(int64_t inputs, int64_t width, int64_t stride) {
    conv1 = register_module("conv1", convolution(inputs, width, 1));
    conv2 = register_module("conv2", convolution(width, width, 3, stride));
    conv3 = register_module("conv3", convolution(width, 4 * width, 1));
    norm1 = register_module("norm1", torch::nn::BatchNorm2d(width));
    norm2 = register_module("norm2", torch::nn::BatchNorm2d(width));
    norm3 = register_module("norm3", torch::nn::BatchNorm2d(4 * width));
    if (stride != 1 || inputs != 4 * width)
      shortcut = register_module("shortcut",
                                 torch::nn::Sequential(convolution(inputs, 4 * width, 1, stride),
                                                       torch::nn::BatchNorm2d(4 * width)));
  }

  // x: (batch, channels, height, width)
  torch::Tensor forward(torch::Tensor x) {
    torch::Tensor y = norm1(conv1(x)).relu_();
    y = norm2(conv2(y)).relu_();
    y = norm3(conv3(y));
    return y.add_(shortcut.is_empty() ? x : shortcut->forward(x)).relu_();
  }

  torch::nn::Conv2d conv1{nullptr}, conv2{nullptr}, conv3{nullptr};
  torch::nn::BatchNorm2d norm1{nullptr}, norm2{nullptr}, norm3{nullptr};
  torch::nn::Sequential shortcut{nullptr};
};
TORCH_MODULE(Bottleneck);

struct ResNet50Impl : torch::nn::Module {
  explicit ResNet50Impl(int64_t classes = 1000) {
    conv1 = register_module("conv1", convolution(3, 64, 7, 2));
    norm1 = register_module("norm1", torch::nn::BatchNorm2d(64));
    const int64_t counts[] = {3, 4, 6, 3};
    int64_t inputs = 64;
    for (int64_t stage = 0; stage < 4; stage++)
      for (int64_t i = 0; i < counts[stage]; i++) {
        const int64_t width = int64_t{64} << stage;
        blocks.push_back(
            register_module("stage" + std::to_string(stage + 1) + "_" + std::to_string(i),
                            Bottleneck(inputs, width, i == 0 && stage > 0 ? 2 : 1)));
        inputs = 4 * width;
      }
    head = register_module("head", torch::nn::Linear(inputs, classes));
  }

  // images: (batch, 3, height, width). What the first block takes.
  torch::Tensor stem(const torch::Tensor& images) {
    return torch::max_pool2d(norm1(conv1(images)).relu_(), 3, 2, 1);
  }

  // Mean cross entropy of the last block's result against labels: (batch) int64.
  torch::Tensor loss_of(const torch::Tensor& x, const torch::Tensor& labels) {
    return torch::nn::functional::cross_entropy(head(x.mean({2, 3})), labels);
  }

  torch::Tensor forward(const torch::Tensor& images, const torch::Tensor& labels) {
    torch::Tensor x = stem(images);
    for (auto& block : blocks) x = block->forward(x);
    return loss_of(x, labels);
  }

  torch::nn::Conv2d conv1{nullptr};
  torch::nn::BatchNorm2d norm1{nullptr};
  std::vector<Bottleneck> blocks;
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(ResNet50);

}  // namespace examples
