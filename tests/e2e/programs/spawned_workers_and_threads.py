"""Worker processes that load data and training in a thread: one report."""
import torch

from hold import hold

import threading
class Data(torch.utils.data.Dataset):
    def __len__(self): return 24
    def __getitem__(self, i): return torch.full((512,), float(i))
def work(method):
    global model, optimizer
    model = torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 512)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for x in torch.utils.data.DataLoader(Data(), batch_size=8, num_workers=1, multiprocessing_context=method, pin_memory=True):
        optimizer.zero_grad()
        model(x.cuda(non_blocking=True)).square().mean().backward()
        optimizer.step()
if __name__ == '__main__':
    work('spawn')
    thread = threading.Thread(target=work, args=('fork',))
    thread.start(); thread.join()
    hold([model], [optimizer])
