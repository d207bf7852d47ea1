"""A program that records PyTorch's history gets the same one, byte for byte, and so do we."""
import json, sys, torch
torch.cuda.memory._record_memory_history(stacks='python')

model = torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 512)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    optimizer.zero_grad()
    model(torch.randn(64, 512, device='cuda')).square().mean().backward()
    optimizer.step()

trace = torch.cuda.memory._snapshot()['device_traces'][0]
segments = [(e['addr'], e['size']) for e in trace if e['action'] == 'segment_alloc']
def place(address):  # where segments lie is the machine's choice
    return next(([i, address - begin] for i, (begin, size) in enumerate(segments) if begin <= address < begin + size), None)
print('HISTORY ' + json.dumps([[e['action'], e['size'], place(e['addr']), e['stream'], [[f['filename'], f['line'], f['name']] for f in e['frames']]] for e in trace]))
