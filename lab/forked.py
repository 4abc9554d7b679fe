"""Kernels forked from a process that has imported what notebooks need, which would take each kernel seconds."""

import multiprocessing
import os
import sys
import time

FORKS = multiprocessing.get_context("forkserver")
# utils before torch, for its settings
LIBRARIES = (
    "torch.func scipy.stats sklearn.linear_model pandas torchvision matplotlib.pyplot ipywidgets"
)
FORKS.set_forkserver_preload(["utils", *LIBRARIES.split(), "ipykernel.kernelapp"])


def kernel(words, environment, folder):
    """Be a kernel with these words of its command, in a session of its own."""
    os.setsid()
    os.environ |= environment
    os.chdir(folder)
    sys.path.insert(0, "")
    for name in [*sys.modules]:
        if name.split(".")[0] == "utils":  # a folder may have its own
            del sys.modules[name]
    for stream in range(3):
        os.dup2(os.open(os.devnull, os.O_RDWR), stream)
    import matplotlib
    from ipykernel.kernelapp import launch_new_instance

    matplotlib.rcParams["backend"] = "module://matplotlib_inline.backend_inline"
    launch_new_instance(words)


class Forked:
    """A kernel that was forked, as what jupyter_client takes for its Popen."""

    stdin = stdout = stderr = None

    def __init__(self, command, env, cwd=None, **streams):
        words = command[3:], env, cwd or os.getcwd()
        self.process = FORKS.Process(target=kernel, args=words, daemon=True)
        self.process.start()
        self.pid: int = self.process.pid
        self.kill = self.process.kill
        self.terminate = self.process.terminate
        while self.poll() is None and os.getpgid(self.pid) != self.pid:  # signals go to its group
            time.sleep(0.001)

    def poll(self):
        return self.process.exitcode

    def wait(self):
        self.process.join()
        return self.process.exitcode

    def send_signal(self, number):
        os.kill(self.pid, number)


def fork_kernels():
    """Let every kernel that this process starts be forked, where forks are safe."""
    from jupyter_client.provisioning import local_provisioner

    if sys.platform == "linux":
        local_provisioner.launch_kernel = Forked
