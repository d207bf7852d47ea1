"""Put on PYTHONPATH by `tonnage run`: makes tonnage.labels known to a Python process when it imports torch,
and tonnage.frameworks when it imports another framework, then runs the
sitecustomize that this one hides. It costs nothing until then and never raises."""
import sys


def _load_labels():
    """Imports tonnage.labels from beside this folder, whether or not a package of that name is installed."""
    import importlib.util
    import os

    path = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "labels.py")
    spec = importlib.util.spec_from_file_location("tonnage.labels", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules["tonnage.labels"] = module
    try:
        module.torch_imported()
    except Exception:
        sys.modules.pop("tonnage.labels", None)


def _load_frameworks(name):
    """Imports tonnage.frameworks in the same way, once, and tells it which framework there is."""
    import importlib.util
    import os

    module = sys.modules.get("tonnage.frameworks")
    if module is None:
        path = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "frameworks.py")
        spec = importlib.util.spec_from_file_location("tonnage.frameworks", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        sys.modules["tonnage.frameworks"] = module
    module.imported(name)


class _AfterImport:
    """A finder that finds nothing: it lets the real finders find a module, and calls a function once the module was executed."""

    def __init__(self):
        self.wanted = {"torch.optim.optimizer": _load_labels}
        for name in ("jax", "tensorflow", "cupy", "numba.cuda", "warp"):
            self.wanted[name] = lambda name=name: _load_frameworks(name)

    def find_spec(self, name, path=None, target=None):
        function = self.wanted.pop(name, None)
        if function is None:
            return None
        try:
            import importlib.util

            spec = importlib.util.find_spec(name)
            if spec is None or spec.loader is None:
                return None
            execute = spec.loader.exec_module

            def exec_module(module):
                execute(module)
                try:
                    function()
                except Exception:
                    pass

            spec.loader.exec_module = exec_module
            return spec
        except Exception:
            return None


def _run_hidden_sitecustomize():
    """The next sitecustomize on sys.path after this folder, as Python itself would have run it."""
    import importlib.machinery
    import importlib.util
    import os

    here = os.path.dirname(os.path.abspath(__file__))
    rest = []
    seen = False
    for entry in sys.path:
        if seen:
            rest.append(entry)
        elif os.path.abspath(entry or ".") == here:
            seen = True
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", rest if seen else sys.path)
    if spec is None or spec.loader is None or os.path.abspath(spec.origin or "") == os.path.abspath(__file__):
        return
    module = importlib.util.module_from_spec(spec)
    mine = sys.modules.get("sitecustomize")
    sys.modules["sitecustomize"] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules["sitecustomize"] = mine
        raise


try:
    sys.meta_path.insert(0, _AfterImport())
except Exception:
    pass
_run_hidden_sitecustomize()
