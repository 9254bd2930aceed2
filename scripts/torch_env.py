"""scratch/venv below the project's root: PyTorch and numpy, installed when they are missing (some 5 GB)."""
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
VENV = ROOT / "scratch" / "venv"


def enter_venv():
    """Starts the calling script again inside scratch/venv, made and filled when it is missing."""
    python = VENV / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
    if subprocess.run([str(python), "-c", "import torch, numpy"], capture_output=True).returncode != 0:
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", "torch", "numpy"], check=True)
    if pathlib.Path(sys.prefix).resolve() != VENV.resolve():
        os.execv(str(python), [str(python), *sys.argv])
