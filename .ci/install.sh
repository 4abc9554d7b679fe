# Installs what conda hands to pip, and what comes after it in the README and on Binder, and imports it: make install-check.
set -e
UV=.venv/bin/uv
PLACE=_build/install

rm -rf $PLACE
$PYTHON -m venv $PLACE
sed -n 's/^      - //p' environment.yml > $PLACE/conda.txt
cp requirements.lock $PLACE/
$UV pip install -q --python $PLACE/bin/python -r $PLACE/conda.txt
PATH="$PWD/$PLACE/bin:$PATH" sh postBuild
for python in 3.12 3.13 3.14; do
	$UV pip install -q --dry-run --python-version $python --only-binary :all: --target $PLACE/newer -r requirements.lock
done
cd $PLACE
bin/python -c 'import attacks, audit, evaluation, experiments; from lab import figures; from training import images; import jupyter_book, torchvision; images.load("photos")'
cd - > /dev/null
rm -rf $PLACE
echo "The environment of environment.yml installs, and the book's code runs in it."
