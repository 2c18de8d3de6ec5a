package servers

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/pgoutbox/outbox/internal/child"
)

// fromTemplate makes a data folder: by create, the first time, and later by copying what create left then, which is
// kept in the cache under name. uid, unless 0, owns the folder.
func fromTemplate(name, data string, uid int, create func() error) error {
	cache, err := CacheDir()
	if err != nil {
		return err
	}
	templates := filepath.Join(cache, "templates")
	template := filepath.Join(templates, fmt.Sprintf("%s-uid%d", name, os.Geteuid()))
	if _, err := os.Stat(template); err == nil {
		return copyTree(template, data, uid, nil)
	}
	if err := create(); err != nil {
		return err
	}
	// The data is there. A cache that can't be written to only costs time.
	_ = keep(data, templates, template, uid)
	return nil
}

// keep makes a copy of data appear at once, and complete, as template.
func keep(data, templates, template string, uid int) error {
	if err := os.MkdirAll(templates, 0o755); err != nil {
		return err
	}
	work, err := child.Folder(templates, ".new-", "")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	whole := filepath.Join(work, "data")
	if err := copyTree(data, whole, uid, nil); err != nil {
		return err
	}
	err = os.Rename(whole, template)
	if errors.Is(err, os.ErrExist) || errors.Is(err, syscall.ENOTEMPTY) {
		return nil // another process was faster
	}
	return err
}
