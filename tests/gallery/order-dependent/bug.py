"""A set encoder that reads its points in order."""

from torch import nn

from pytest_torchcheck import contract, promises

CHECKS = ('backward', 'permutation-invariance')


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(3, 16, batch_first=True)
        self.body = nn.Linear(3, 16)
        self.head = nn.Linear(16, 2)

    def forward(self, points):
        h = self.rnn(points)[0][:, -1] + self.body(points).amax(1)
        return self.head(h)


@contract(inputs="B N 3", sizes={"B": (2, 4), "N": (4, 9)}, promises=(promises.PermutationInvariant(dim=1),))
def net():
    return Net()
