"""The end of a forward on CUDA: hidden states in, R rows of reduced distributions out."""

from __future__ import annotations

import torch

from scorer.cuda.device import DeviceReducer
from scorer.cuda.graphs import capturing
from scorer.model import Qwen3
from scorer.reduction import RawReduction, RowRequests
from scorer.shapes import IntArray


class Head:
    """Gathers R rows of hidden states and takes them through lm_head and reduction.

    Its buffers, of which the logits' is the largest (4 × R × vocabulary bytes), serve one call at a
    time: ``launch``, then ``collect``. Everything between the upload of what is asked and the
    download of the results is one graph, captured once for each buffer of hidden states.

    Raises DeviceError when the device can't run the reduction's kernels.
    """

    def __init__(self, model: Qwen3, *, rows: int, n_ids: int) -> None:
        self._model = model
        self._rows = rows
        self._reducer = DeviceReducer(
            model.device, max_rows=rows, vocab_size=model.checkpoint.vocab_size, n_ids=n_ids
        )
        self._pinned = torch.zeros(rows, dtype=torch.int64, pin_memory=True)
        self._index = torch.zeros(rows, dtype=torch.int64, device=model.device)
        self._recording = torch.cuda.Stream(model.device)  # type: ignore[no-untyped-call]
        self._logits = torch.empty(
            rows, model.checkpoint.vocab_size, dtype=torch.float32, device=model.device
        )
        self._graphs: dict[tuple[int, int], tuple[int, torch.cuda.CUDAGraph]] = {}
        self._launched = False

    @torch.inference_mode()
    def launch(
        self, hidden: torch.Tensor, rows: IntArray, requests: RowRequests, *, graph: bool
    ) -> None:
        """Start the rows at these indices of ``hidden`` [T, n], at most R; does not wait.

        lm_head sees exactly R rows, the missing ones repeat row 0. graph: replay; ``hidden`` is
        then a buffer that stays. Raises RuntimeError when the last call was not collected.
        """
        if self._launched:
            raise RuntimeError("the head still has rows that were not collected")
        index = self._pinned.numpy()
        index[: len(rows)] = rows
        index[len(rows) :] = 0
        self._index.copy_(self._pinned, non_blocking=True)
        self._reducer.stage(requests)
        if graph:
            self._replay(hidden)
        else:
            self._compute(hidden)
        self._reducer.download()
        self._launched = True

    def collect(self) -> RawReduction | None:
        """Wait for the launched rows and return them; None when there are none.

        Raises DeviceError when the device failed.
        """
        if not self._launched:
            return None
        self._launched = False
        return self._reducer.collect(self._logits).raw

    def _compute(self, hidden: torch.Tensor) -> None:
        self._reducer.enqueue(
            self._model.logits(hidden.index_select(0, self._index), out=self._logits)
        )

    def _replay(self, hidden: torch.Tensor) -> None:
        key = hidden.data_ptr(), len(hidden)
        generation, graph = self._graphs.get(key, (-1, None))
        if graph is None or generation != self._reducer.generation:
            self._compute(hidden)  # what is compiled, is then
            graph = torch.cuda.CUDAGraph()
            with capturing(graph, self._recording):
                self._compute(hidden)
            self._graphs[key] = self._reducer.generation, graph
        graph.replay()
