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
	"github.com/pgoutbox/outbox/internal/servers"
)

// Install calls fill to put files into a work folder, and moves that to dir in one step: dir either doesn't exist or is
// complete, even if Install is interrupted or several processes install the same at once. It removes what interrupted
// installations have left.
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

// Fetch puts the PostgreSQL of the given version ("18.6.0": three numbers, the last one 0) into dir by [Install], so
// that dir/bin has postgres and initdb. About 15 MB are downloaded, 60 MB unpacked. At each step a line goes to
// progress, which may be nil. It fetches nothing if dir has the server already. Every user of the machine may read
// everything in dir, because a server started by root runs as another user.
func Fetch(ctx context.Context, version, dir string, progress io.Writer) error {
	if progress == nil {
		progress = io.Discard
	}
	if !wellFormed.MatchString(version) {
		return fmt.Errorf("fetch PostgreSQL %q: a version has three numbers, as in 18.6.0", version)
	}
	if present, _ := filepath.Glob(filepath.Join(dir, "bin", "postgres*")); present != nil {
		return runs(ctx, version, dir)
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
	return runs(ctx, version, dir)
}

// runs tells whoever fetches, and not each program that starts the server, that the machine lacks its libraries.
func runs(ctx context.Context, version, dir string) error {
	out, err := exec.CommandContext(ctx, filepath.Join(dir, "bin", "postgres"), "--version").CombinedOutput()
	if err != nil {
		err = servers.AdviseLibrary(fmt.Errorf("PostgreSQL %s is in %s and doesn't run on this machine: %w: %s",
			version, dir, err, bytes.TrimSpace(out)))
	}
	return err
}

// central has the archives of github.com/zonkyio/embedded-postgres-binaries.
const central = "https://repo1.maven.org/maven2/io/zonky/test/postgres/"

// platform is the name of this machine's platform in the archives.
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

// download gets an archive and compares it with its published checksum.
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

// downloadByMaven gets the same archive by Maven, which knows the mirrors and proxies of this machine.
func downloadByMaven(ctx context.Context, artifact, version, work string) ([]byte, error) {
	mvn, err := exec.LookPath("mvn")
	if err != nil {
		return nil, errors.New("check the network and the version, or install Maven (mvn) if only that is set up for your mirror")
	}
	cmd := exec.CommandContext(ctx, mvn, "-q", "-B", "-Dstyle.color=never", "dependency:copy",
		"-Dartifact=io.zonky.test.postgres:"+artifact+":"+version+":jar", "-DoutputDirectory="+work)
	cmd.Dir = work // outside of any project
	if out, err := cmd.CombinedOutput(); err != nil {
		line, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
		return nil, fmt.Errorf("mvn dependency:copy of %s: %w: %s", artifact, err, line)
	}
	return os.ReadFile(filepath.Join(work, artifact+"-"+version+".jar"))
}

// unpack unpacks the .txz inside an archive.
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

// untar makes everything readable for everyone, whatever the umask.
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

// mkdir creates a folder and its missing parents.
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
