// Package pgfetch installs a PostgreSQL server into a folder, without root and without a package manager.
package pgfetch

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"

	"github.com/xi2/xz"

	"github.com/pgoutbox/outbox/internal/child"
)

// Install has fill put files into the folder out of a work folder, and moves that to dir in one step: dir either
// doesn't exist or is complete, whatever interrupts it and however many processes install the same at once. What
// interrupted ones have left is removed.
func Install(dir string, fill func(work string) error) error {
	parent := filepath.Dir(dir)
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return err
	}
	work, err := child.Folder(parent, ".fetch-", "")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	if err := fill(work); err != nil {
		return err
	}
	if err := os.Rename(filepath.Join(work, "out"), dir); err != nil {
		if entries, readErr := os.ReadDir(dir); readErr == nil && len(entries) > 0 {
			return nil // another process was faster
		}
		return err
	}
	return nil
}

var wellFormed = regexp.MustCompile(`^\d+\.\d+\.\d+$`)

// Fetch puts the PostgreSQL of the given version ("18.6.0": three numbers, the last one 0) into dir, as [Install] does,
// so that dir/bin holds postgres and initdb. About 15 MB are downloaded, 60 MB unpacked. A line of progress goes to
// progress, which may be nil, at each step. It does nothing when dir has the server already. Everything in dir may be
// read by every user of the machine, because a server started by root runs as another user.
func Fetch(ctx context.Context, version, dir string, progress io.Writer) error {
	if progress == nil {
		progress = io.Discard
	}
	if !wellFormed.MatchString(version) {
		return fmt.Errorf("fetch PostgreSQL %q: a version has three numbers, as in 18.6.0", version)
	}
	if servers, _ := filepath.Glob(filepath.Join(dir, "bin", "postgres*")); servers != nil {
		return nil
	}
	err := Install(dir, func(work string) error {
		fmt.Fprintf(progress, "PostgreSQL %s: downloading 15 MB\n", version)
		artifact := "embedded-postgres-binaries-" + platform()
		jar, err := download(ctx, central+artifact+"/"+version+"/"+artifact+"-"+version+".jar")
		if err != nil && ctx.Err() == nil {
			fmt.Fprintf(progress, "PostgreSQL %s: %v; trying Maven\n", version, err)
			var mvnErr error
			jar, mvnErr = downloadByMaven(ctx, artifact, version, work)
			if err = errors.Join(err, mvnErr); mvnErr == nil {
				err = nil
			}
		}
		if err != nil {
			return err
		}
		return unpack(jar, filepath.Join(work, "out"))
	})
	if err != nil {
		return fmt.Errorf("fetch PostgreSQL %s: %w", version, err)
	}
	fmt.Fprintf(progress, "PostgreSQL %s: installed in %s\n", version, dir)
	return nil
}

// central has the archives of github.com/zonkyio/embedded-postgres-binaries.
const central = "https://repo1.maven.org/maven2/io/zonky/test/postgres/"

// platform is this machine in the names of the archives.
func platform() string {
	arch := runtime.GOARCH
	if arch == "arm64" && runtime.GOOS != "windows" {
		arch = "arm64v8"
	}
	if _, err := os.Stat("/etc/alpine-release"); err == nil {
		arch += "-alpine"
	}
	return runtime.GOOS + "-" + arch
}

// download gets an archive and compares it with its checksum, which lies beside it.
func download(ctx context.Context, url string) ([]byte, error) {
	archive, err := get(ctx, url)
	if err != nil {
		return nil, err
	}
	sum, err := get(ctx, url+".sha256")
	if err != nil {
		return nil, err
	}
	if got := fmt.Sprintf("%x", sha256.Sum256(archive)); got != strings.TrimSpace(string(sum)) {
		return nil, fmt.Errorf("%s has the checksum %s, and %s says %s", url, got, filepath.Base(url)+".sha256", sum)
	}
	return archive, nil
}

func get(ctx context.Context, url string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", url, response.Status)
	}
	return io.ReadAll(response.Body)
}

// downloadByMaven gets the same archive by a client that knows the mirrors and proxies of this machine.
func downloadByMaven(ctx context.Context, artifact, version, work string) ([]byte, error) {
	mvn, err := exec.LookPath("mvn")
	if err != nil {
		return nil, errors.New("check the network and the version, or install Maven (mvn) if only that is set up for your mirror")
	}
	cmd := exec.CommandContext(ctx, mvn, "-q", "-B", "-Dstyle.color=never", "dependency:copy",
		"-Dartifact=io.zonky.test.postgres:"+artifact+":"+version+":jar", "-DoutputDirectory="+work)
	cmd.Dir = work // not into a project that happens to be here
	if out, err := cmd.CombinedOutput(); err != nil {
		line, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
		return nil, fmt.Errorf("mvn dependency:copy of %s: %w: %s", artifact, err, line)
	}
	return os.ReadFile(filepath.Join(work, artifact+"-"+version+".jar"))
}

// unpack unpacks the .txz that is in an archive.
func unpack(archive []byte, to string) error {
	jar, err := zip.NewReader(bytes.NewReader(archive), int64(len(archive)))
	if err != nil {
		return err
	}
	for _, file := range jar.File {
		if !strings.HasSuffix(file.Name, ".txz") {
			continue
		}
		txz, err := file.Open()
		if err != nil {
			return err
		}
		defer txz.Close()
		plain, err := xz.NewReader(txz, 0)
		if err != nil {
			return err
		}
		return untar(tar.NewReader(plain), to)
	}
	return errors.New("the archive holds no server")
}

// untar lets everyone read everything, whatever the umask is.
func untar(archive *tar.Reader, to string) error {
	if err := errors.Join(os.Mkdir(to, 0o755), os.Chmod(to, 0o755)); err != nil {
		return err
	}
	root, err := os.OpenRoot(to)
	if err != nil {
		return err
	}
	defer root.Close()
	for {
		entry, err := archive.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		name := filepath.Clean(entry.Name)
		if err := mkdir(root, filepath.Dir(name)); err != nil {
			return err
		}
		switch entry.Typeflag {
		case tar.TypeDir:
			err = mkdir(root, name)
		case tar.TypeSymlink:
			err = root.Symlink(entry.Linkname, name)
		case tar.TypeReg:
			mode := os.FileMode(0o644)
			if entry.Mode&0o100 != 0 {
				mode = 0o755
			}
			err = write(root, name, mode, archive)
		}
		if err != nil {
			return err
		}
	}
}

// mkdir makes a folder with those that it lies in, where they aren't there.
func mkdir(root *os.Root, name string) error {
	if _, err := root.Stat(name); err == nil {
		return nil
	}
	return errors.Join(mkdir(root, filepath.Dir(name)), root.Mkdir(name, 0o755), root.Chmod(name, 0o755))
}

func write(root *os.Root, name string, mode os.FileMode, from io.Reader) error {
	file, err := root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(file, from)
	return errors.Join(err, file.Chmod(mode), file.Close())
}
