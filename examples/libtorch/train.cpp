// Trains a small convolutional network and a small transformer encoder with libtorch, on made-up
// data.
//
//   train_libtorch [--batch-size N] [--steps N]
#include <torch/torch.h>

#include <cstdlib>
#include <cstring>
#include <iostream>

struct Net : torch::nn::Module {
  torch::nn::Sequential features{
      torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 64, 3).padding(1)),
      torch::nn::BatchNorm2d(64),
      torch::nn::ReLU(),
      torch::nn::Conv2d(torch::nn::Conv2dOptions(64, 128, 3).stride(2).padding(1)),
      torch::nn::BatchNorm2d(128),
      torch::nn::ReLU(),
      torch::nn::Conv2d(torch::nn::Conv2dOptions(128, 256, 3).stride(2).padding(1)),
      torch::nn::BatchNorm2d(256),
      torch::nn::ReLU()};
  torch::nn::TransformerEncoder encoder{torch::nn::TransformerEncoder(
      torch::nn::TransformerEncoderLayer(
          torch::nn::TransformerEncoderLayerOptions(256, 8).dim_feedforward(1024)),
      2)};
  torch::nn::Linear head{256, 10};

  Net() {
    register_module("features", features);
    register_module("encoder", encoder);
    register_module("head", head);
  }

  torch::Tensor forward(torch::Tensor x) {
    x = features->forward(x);                               // (batch, 256, 16, 16)
    x = encoder->forward(x.flatten(2).permute({2, 0, 1}));  // (256, batch, 256)
    return head->forward(x.mean(0));
  }
};

int main(int argc, char** argv) {
  int batch_size = 32, steps = 4;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (!std::strcmp(argv[i], "--batch-size"))
      batch_size = std::atoi(argv[i + 1]);
    else if (!std::strcmp(argv[i], "--steps"))
      steps = std::atoi(argv[i + 1]);
    else {
      std::cerr << "usage: train_libtorch [--batch-size N] [--steps N]\n";
      return 2;
    }
  }
  if (!torch::cuda::is_available()) {
    std::cerr << "no CUDA device\n";
    return 1;
  }
  try {
    torch::manual_seed(0);
    torch::Device device(torch::kCUDA);
    Net net;
    net.to(device);
    net.train();
    torch::optim::AdamW optimizer(net.parameters(), torch::optim::AdamWOptions(1e-3));
    for (int step = 1; step <= steps; step++) {
      auto images = torch::randn({batch_size, 3, 64, 64}).to(device);
      auto labels = torch::randint(0, 10, {batch_size}, torch::kLong).to(device);
      optimizer.zero_grad();
      auto loss = torch::nn::functional::cross_entropy(net.forward(images), labels);
      loss.backward();
      optimizer.step();
      std::cout << "step " << step << ": loss " << loss.item<float>() << std::endl;
    }
  } catch (const c10::Error& error) {  // out of memory among them
    std::cerr << error.what_without_backtrace() << std::endl;
    return 1;
  }
}
