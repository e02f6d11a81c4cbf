"""What the tests run with: ranks as processes, a group over sockets and a tensor, all without torch."""
import array
import ctypes
import math
import multiprocessing
import os
import socket
import struct
import sys
import traceback

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
sys.path.insert(0, os.path.join(ROOT, "runtime/python"))


class SocketGroup:
    """rank, world and allgather() over sockets that were made before the fork: rank 0 collects and hands out."""

    def __init__(self, rank, world, pairs):
        self.rank, self.world = rank, world
        self.links = [pair[0] for pair in pairs] if rank == 0 else [pairs[rank - 1][1]]
        for number, pair in enumerate(pairs):  # an end that somebody else holds too never says end of file
            for end in pair:
                if end not in self.links:
                    end.close()

    def receive(self, link, size):
        data = b""
        while len(data) < size:
            part = link.recv(size - len(data))
            if not part:
                raise ConnectionError("a rank is gone")
            data += part
        return data

    def allgather(self, data, timeout):
        for link in self.links:
            link.settimeout(timeout)
        if self.rank:
            self.links[0].sendall(data)
            whole = self.receive(self.links[0], len(data) * self.world)
        else:
            whole = data + b"".join(self.receive(link, len(data)) for link in self.links)
            for link in self.links:
                link.sendall(whole)
        return [whole[at:at + len(data)] for at in range(0, len(whole), len(data))]

    def barrier(self):
        self.allgather(b"\0", 60)


def _rank(function, rank, world, pairs, answer):
    try:
        result = None, function(SocketGroup(rank, world, pairs))
    except BaseException:
        result = traceback.format_exc(), None
    answer.send(result)
    answer.close()
    os._exit(0)  # nothing of the parent's is to run here


def run(world, function, dies=()):
    """What function(group) returns in each of `world` forked processes, in rank order. Raises if one fails, or hangs;
    of a rank in `dies`, which ends without an answer, it is None."""
    fork = multiprocessing.get_context("fork")
    pairs = [socket.socketpair() for _ in range(world - 1)]
    answers = [fork.Pipe(duplex=False) for _ in range(world)]
    ranks = [fork.Process(target=_rank, args=(function, rank, world, pairs, answers[rank][1])) for rank in range(world)]
    for rank in ranks:
        rank.start()
    for end in [end for pair in pairs for end in pair] + [answer[1] for answer in answers]:
        end.close()
    results, troubles = [], []
    for number, (answer, _) in enumerate(answers):
        try:
            trouble, result = answer.recv() if answer.poll(60) else ("it hangs", None)
        except EOFError:
            trouble, result = None if number in dies else "it died", None
        results.append(result)
        if trouble:
            troubles.append(f"rank {number}: {trouble}")
    for rank in ranks:
        rank.kill()
        rank.join()
    if troubles:
        raise AssertionError("\n".join(troubles))
    return results


def _float_bits(value):
    return struct.unpack("<I", struct.pack("<f", value))[0]


CODES = {  # array code, what is stored for a value, and back; bf16 cuts: exact for small whole numbers
    "float32": ("f", float, float),
    "bfloat16": ("H", lambda value: _float_bits(value) >> 16,
                 lambda bits: struct.unpack("<f", struct.pack("<I", bits << 16))[0]),
    "float16": ("H", lambda value: struct.unpack("<H", struct.pack("<e", value))[0],
                lambda bits: struct.unpack("<e", struct.pack("<H", bits))[0]),
}


class Tensor:
    """As much of a tensor as the communicator looks at."""

    def __init__(self, shape, dtype="float32", values=None, device="cpu", contiguous=True):
        self.shape, self.dtype, self.device, self.contiguous = tuple(shape), dtype, device, contiguous
        code, store, self._load = CODES.get(dtype, CODES["float32"])
        values = [7] * self.numel() if values is None else values
        self.data = array.array(code, [store(value) for value in values] or [store(0)])

    def data_ptr(self):
        return self.data.buffer_info()[0]

    def numel(self):
        return math.prod(self.shape)

    def is_contiguous(self):
        return self.contiguous

    def new_empty(self, shape):
        return Tensor(shape, self.dtype)

    def values(self):
        return [self._load(value) for value in self.data][:self.numel()]

    def bits(self):
        return self.data.tobytes()


def oracle(lib, tensors, dtype):
    """The bits that the sum of the tensors has to have."""
    out = Tensor(tensors[0].shape, tensors[0].dtype)
    pointers = (ctypes.c_void_p * len(tensors))(*[tensor.data_ptr() for tensor in tensors])
    assert lib.rf_oracle_all_reduce(pointers, out.data_ptr(), out.numel(), dtype, len(tensors)) == 0
    return out.bits()
