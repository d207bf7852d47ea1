"""Signal reaches the command."""
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *a: sys.exit(42))
print('ready', flush=True)
time.sleep(60)
