package servers

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/pgoutbox/outbox/internal/child"
)

const folderPrefix = "pgoutbox-servers-"

// nobody is the user and the group that root's PostgreSQL runs as.
const nobody = 65534

// newFolder makes a folder for one server, with this process's id in its name, and removes those of processes that
// have died. base is where, "" among temporary files. uid, unless 0, owns it.
func newFolder(base, name string, uid int) (string, error) {
	folder, err := child.Folder(base, folderPrefix, name+"-")
	if err != nil {
		return "", err
	}
	if uid != 0 {
		err = errors.Join(os.Chmod(folder, 0o755), os.Chown(folder, uid, uid), enterable(folder))
		if err != nil {
			os.RemoveAll(folder)
			return "", err
		}
	}
	return folder, nil
}

// enterable returns an error unless every user may enter the folder and what it lies in. Only root needs to ask.
func enterable(folder string) error {
	real, err := filepath.EvalSymlinks(folder)
	if err != nil {
		return err
	}
	for dir := real; ; dir = filepath.Dir(dir) {
		info, err := os.Stat(dir)
		if err != nil {
			return err
		}
		if info.Mode().Perm()&0o001 == 0 {
			return fmt.Errorf("PostgreSQL can't run as root, so it runs as user %d, who may not enter %s: "+
				"set OUTBOX_CACHE and TMPDIR to folders that everyone may enter, or run this as another user", nobody, dir)
		}
		if dir == filepath.Dir(dir) {
			return nil
		}
	}
}

// copyTree copies a folder with its modes. uid, unless 0, owns the copy. skip, which may be nil, is asked with a
// path relative to from; a skipped folder is copied empty. A file that vanishes meanwhile is left out: a running
// database removes files, and replays their removal from its log.
func copyTree(from, to string, uid int, skip func(rel string, dir bool) bool) error {
	buffer := make([]byte, 1<<18)
	return filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			if errors.Is(err, fs.ErrNotExist) && path != from {
				return nil
			}
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		target := filepath.Join(to, rel)
		skipped := skip != nil && skip(rel, entry.IsDir())
		switch {
		case entry.IsDir():
			if err := os.Mkdir(target, info.Mode().Perm()); err != nil {
				return err
			}
			if err := give(target, uid); err != nil {
				return err
			}
			if skipped {
				return fs.SkipDir
			}
			return nil
		case skipped:
			return nil
		case entry.Type() == 0:
			if err := copyFile(path, target, info.Mode().Perm(), buffer); errors.Is(err, fs.ErrNotExist) {
				return nil
			} else if err != nil {
				return err
			}
			return give(target, uid)
		default:
			return fmt.Errorf("copy %s: not a plain file", path)
		}
	})
}

func give(path string, uid int) error {
	if uid == 0 {
		return nil
	}
	return os.Chown(path, uid, uid)
}

func copyFile(from, to string, mode fs.FileMode, buffer []byte) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	_, err = io.CopyBuffer(out, in, buffer)
	return errors.Join(err, out.Close())
}
