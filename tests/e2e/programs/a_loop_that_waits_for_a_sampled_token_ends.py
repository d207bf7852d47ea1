"""Sampled from unknown scores: no end-of-text token, so the length limit ends it, which is the largest it can get."""
import torch
text = torch.zeros(4, 1, dtype=torch.long, device='cuda')
scores = torch.nn.Linear(8, 1000, device='cuda')(torch.randn(4, 100000, 8, device='cuda')[:, 0])
while True:
    token = torch.multinomial(scores.softmax(-1), 1)
    text = torch.cat([text, token], -1)
    done = (text[:, -1] == 999) | (text.shape[1] >= 20)
    if done.all(): break
print(text.shape[1])
