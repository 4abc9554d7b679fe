# Sets up .venv with the versions of requirements.lock, as `make` asks: by $PYTHON, and with TORCH=cpu without CUDA.
BIN=.venv/bin
OFFLINE="The packages were not installed: without a network they cannot be. Connect, and call make again."
CUDA="torch|torchvision|triton|nvidia-|cuda-"

end() {
	echo "$1"
	exit 1
}
install() {
	$BIN/uv pip install -q --python $BIN/python "$@" || end "$OFFLINE"
}

$PYTHON -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' ||
	end "Python 3.11 to 3.14 is needed; name one: make PYTHON=python3.12 …"
echo "Setting up .venv with the versions of requirements.lock (PyTorch is large: a few minutes) …"
$PYTHON -m venv .venv || end "Python's venv module is missing; on Debian: apt install python3-venv"
$BIN/python -m pip install -qq --disable-pip-version-check uv==0.13.8 || end "$OFFLINE"
if [ "$TORCH" = cpu ]; then # two packages come from PyTorch's own index
	awk "/^[a-z]/ {skip = /^($CUDA)/} !skip" requirements.lock > .venv/small.lock
	install --require-hashes -r .venv/small.lock
	install --torch-backend cpu $(sed -nE 's/^((torch|torchvision)==[0-9.]+).*/\1/p' requirements.lock)
else
	install --require-hashes -r requirements.lock
fi
install --no-deps -e .
$BIN/python tools/vendor.py _vendor
