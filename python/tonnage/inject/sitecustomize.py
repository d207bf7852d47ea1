"""Put on PYTHONPATH by `tonnage run`: makes tonnage.labels known to a Python process when it imports torch, has the process say at
its end which error it died of, then runs the sitecustomize that this one hides. It costs nothing until then and never raises."""
import sys


def _load(name):
    """Imports tonnage.NAME from beside this folder, whether or not a package of that name is installed."""
    import importlib.util
    import os

    path = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), name + ".py")
    spec = importlib.util.spec_from_file_location("tonnage." + name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _load_labels():
    module = _load("labels")
    sys.modules["tonnage.labels"] = module
    module.torch_imported()


def _tell_last_error():
    """Python has put the error that nobody caught into sys.last_value before it comes here."""
    error = getattr(sys, "last_value", None)
    if error is None:
        return
    try:
        import os

        session = os.environ.get("TONNAGE_SESSION")
        if session:
            _load("ending").tell(error, session)
    except BaseException:
        pass


class _AfterTorch:
    """A finder that finds nothing: it lets the real finders find torch, and wraps what executes it once."""

    def find_spec(self, name, path=None, target=None):
        if name != "torch.optim.optimizer":
            return None
        try:
            sys.meta_path.remove(self)
            import importlib.util

            spec = importlib.util.find_spec(name)
            if spec is None or spec.loader is None:
                return None
            execute = spec.loader.exec_module

            def exec_module(module):
                execute(module)
                try:
                    _load_labels()
                except Exception:
                    sys.modules.pop("tonnage.labels", None)

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
    import atexit

    sys.meta_path.insert(0, _AfterTorch())
    atexit.register(_tell_last_error)
except Exception:
    pass
_run_hidden_sitecustomize()
