package discover

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/pgoutbox/outbox/cmd/internal/config/findings"
	"github.com/pgoutbox/outbox/cmd/internal/config/load"
)

// folder finds the databases that are files. A ConfigMap or Secret that is mounted is a folder of links to ..data/NAME,
// and ..data is a link to the folder with the files, which Kubernetes replaces at once. So all files are read below
// what ..data leads to, and are of one version.
type folder struct{ path string }

// most bounds what is read of a file: a database's settings are a page or two.
const most = 1 << 20

func (f *folder) look(ctx context.Context, _ map[string]bool) ([]item, error) {
	const tries = 3
	for try := 1; ; try++ {
		items, err := f.read()
		if err == nil || !errors.Is(err, errSwapped) || try == tries || ctx.Err() != nil {
			return items, err
		}
	}
}

// errSwapped means that the files were replaced while they were read.
var errSwapped = errors.New("the folder is replaced again and again while it is read")

func (f *folder) read() ([]item, error) {
	dir := f.data()
	entries, err := os.ReadDir(dir)
	if err != nil {
		if dir != f.path && errors.Is(err, fs.ErrNotExist) {
			return nil, errSwapped
		}
		return nil, fmt.Errorf("can't read the folder %q: %w", f.path, findings.Cause(err))
	}
	var items []item
	for _, e := range entries {
		extension := filepath.Ext(e.Name())
		name, url := strings.TrimSuffix(e.Name(), extension), extension == "" || extension == ".url"
		if strings.HasPrefix(e.Name(), ".") || !url && extension != ".yaml" && extension != ".yml" {
			continue // a file that an editor keeps, or a README
		}
		at := filepath.Join(dir, e.Name())
		info, err := os.Stat(at)
		if err == nil && info.IsDir() {
			continue
		}
		var text []byte
		if err == nil && info.Size() <= most {
			text, err = os.ReadFile(at)
		}
		if errors.Is(err, fs.ErrNotExist) {
			if dir != f.path {
				return nil, errSwapped
			}
			continue // it was removed
		}
		it := item{name: name}
		shown := filepath.Join(f.path, e.Name())
		switch {
		case err != nil:
			it.fault = fmt.Sprintf("can't read %q: %v", shown, findings.Cause(err))
		case info.Size() > most:
			it.fault = fmt.Sprintf("%q is larger than %d bytes", shown, most)
		case len(text) == 0:
			it.fault = fmt.Sprintf("%q is empty", shown)
		case url:
			it.found.URL = strings.TrimSpace(string(text))
		default:
			it.found = load.Found{Text: text, Path: shown}
		}
		items = append(items, it)
	}
	if dir != f.path && f.data() != dir {
		return nil, errSwapped // the files of the version before are removed one after the other: a list of them may be short
	}
	return items, nil
}

// data returns the folder that the files are in.
func (f *folder) data() string {
	target, err := filepath.EvalSymlinks(filepath.Join(f.path, "..data"))
	if err != nil {
		return f.path
	}
	return target
}
