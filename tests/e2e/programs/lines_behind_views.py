"""Views are not observed; what is made in their backward pass has its line, and a parameter that is used through one is one."""
import torch
weight = torch.nn.Parameter(torch.randn(1024, 512, device='cuda'))
x = torch.randn(256, 512, device='cuda', requires_grad=True)
turned = weight.t()
y = torch.mm(x, turned)  # its backward pass makes the weight's gradient
z = y.view(16, 16, 1024)  # and this one's a copy
z = z.transpose(0, 1)
z = z.select(0, 3)  # and this one's zeros
(z * 3).sum().backward()
