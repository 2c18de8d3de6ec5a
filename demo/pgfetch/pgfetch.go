// Package pgfetch installs a PostgreSQL server into a folder, without root and without a package manager.
package pgfetch

import (
	"archive/zip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"

	embedded "github.com/fergusstrange/embedded-postgres"
)

var wellFormed = regexp.MustCompile(`^\d+\.\d+\.\d+$`)

// Fetch puts the PostgreSQL of the given version ("18.6.0": three numbers, the last one 0) into dir, so that dir/bin
// holds postgres and initdb. About 15 MB are downloaded, 60 MB unpacked. A line of progress goes to progress, which may
// be nil, at each step.
//
// It does nothing when dir has the server already, and it is atomic: dir either doesn't exist or is complete, whatever
// interrupts it and however many processes fetch the same version at once. Everything in dir may be read by every user
// of the machine, because a server started by root runs as another user.
//
// When ctx ends, Fetch returns at once; a download under way is abandoned to the end of the process, for the library
// that does it takes no context.
func Fetch(ctx context.Context, version, dir string, progress io.Writer) error {
	if progress == nil {
		progress = io.Discard
	}
	if !wellFormed.MatchString(version) {
		return fmt.Errorf("fetch PostgreSQL %q: a version has three numbers, as in 18.6.0", version)
	}
	if present(dir) {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("fetch PostgreSQL %s: %w", version, err)
	}
	parent := filepath.Dir(dir)
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return fmt.Errorf("fetch PostgreSQL %s: %w", version, err)
	}
	sweep(parent)
	work, err := os.MkdirTemp(parent, workPrefix)
	if err != nil {
		return fmt.Errorf("fetch PostgreSQL %s: %w", version, err)
	}

	done := make(chan error, 1)
	go func() {
		defer os.RemoveAll(work)
		done <- fetch(ctx, version, work, dir, progress)
	}()
	select {
	case err = <-done:
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		return fmt.Errorf("fetch PostgreSQL %s: %w", version, err)
	}
	return nil
}

const workPrefix = ".fetch-postgres-"

// sweep removes what interrupted fetches have left. None takes an hour.
func sweep(parent string) {
	old, _ := filepath.Glob(filepath.Join(parent, workPrefix+"*"))
	for _, dir := range old {
		if info, err := os.Stat(dir); err == nil && time.Since(info.ModTime()) > time.Hour {
			os.RemoveAll(dir)
		}
	}
}

func present(dir string) bool {
	for _, name := range []string{"postgres", "initdb"} {
		if runtime.GOOS == "windows" {
			name += ".exe"
		}
		if _, err := os.Stat(filepath.Join(dir, "bin", name)); err != nil {
			return false
		}
	}
	return true
}

func fetch(ctx context.Context, version, work, dir string, progress io.Writer) error {
	fmt.Fprintf(progress, "PostgreSQL %s: downloading 15 MB\n", version)
	tree, err := unpack(version, work)
	if err != nil {
		// The same archive by another client, which knows the mirrors and proxies of this machine.
		mvn, lookErr := exec.LookPath("mvn")
		if lookErr != nil {
			return fmt.Errorf("%w; check the network and the version, or install Maven (mvn) if only that is set up for your mirror", err)
		}
		fmt.Fprintf(progress, "PostgreSQL %s: %v; trying Maven\n", version, err)
		if mvnErr := downloadByMaven(ctx, mvn, version, work); mvnErr != nil {
			return errors.Join(err, mvnErr)
		}
		if tree, err = unpack(version, work); err != nil {
			return err
		}
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := readableByAll(tree); err != nil {
		return err
	}
	if err := os.Rename(tree, dir); err != nil && !present(dir) {
		return err
	}
	fmt.Fprintf(progress, "PostgreSQL %s: installed in %s\n", version, dir)
	return nil
}

// unpack downloads the archive, unless work/archive has it, and unpacks it into the folder that it returns.
//
// The library has no call for that alone, its Start goes on to create and run a cluster. A data folder whose name ends
// in a dot makes it stop in between: [os.RemoveAll] refuses such a name, and clearing the data folder is the first thing
// that Start does after unpacking. So no server is started, and it is the same for root and other users.
func unpack(version, work string) (tree string, err error) {
	tree = filepath.Join(work, "tree")
	before := emptyLogs()
	err = embedded.NewDatabase(embedded.DefaultConfig().
		Version(embedded.PostgresVersion(version)).
		Port(0).
		CachePath(archiveDir(work)).
		BinariesPath(tree).
		RuntimePath(filepath.Join(work, "runtime")).
		DataPath(filepath.Join(work, "none") + string(filepath.Separator) + ".").
		Logger(io.Discard)).Start()
	for _, name := range emptyLogs() { // Start leaves one behind
		if !slices.Contains(before, name) {
			os.Remove(name)
		}
	}
	if present(tree) {
		return tree, nil
	}
	if err == nil {
		err = errors.New("the archive holds no server")
	}
	return "", err
}

func archiveDir(work string) string { return filepath.Join(work, "archive") }

// emptyLogs lists the empty log files of the library.
func emptyLogs() []string {
	names, _ := filepath.Glob(filepath.Join(os.TempDir(), "embedded_postgres_log*"))
	return slices.DeleteFunc(names, func(name string) bool {
		info, err := os.Stat(name)
		return err != nil || info.Size() > 0
	})
}

// downloadByMaven puts the archive where unpack finds it.
func downloadByMaven(ctx context.Context, mvn, version, work string) error {
	artifact := "embedded-postgres-binaries-" + platform()
	jars := filepath.Join(work, "jar")
	cmd := exec.CommandContext(ctx, mvn, "-q", "-B", "-Dstyle.color=never", "dependency:copy",
		"-Dartifact=io.zonky.test.postgres:"+artifact+":"+version+":jar", "-DoutputDirectory="+jars)
	cmd.Dir = work // not into a project that happens to be here
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("mvn dependency:copy of %s: %w: %s", artifact, err, firstLine(out))
	}
	jar, err := zip.OpenReader(filepath.Join(jars, artifact+"-"+version+".jar"))
	if err != nil {
		return err
	}
	defer jar.Close()
	for _, file := range jar.File {
		if strings.HasSuffix(file.Name, ".txz") {
			return extract(file, filepath.Join(archiveDir(work), artifact+"-"+version+".txz"))
		}
	}
	return fmt.Errorf("%s has no .txz in it", artifact)
}

// platform is this machine in the names of the archives, as the library spells it for 64 bits.
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

func extract(file *zip.File, to string) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	in, err := file.Open()
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

func firstLine(out []byte) string {
	line, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	return line
}

// readableByAll undoes a strict umask.
func readableByAll(tree string) error {
	return filepath.WalkDir(tree, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.Type()&fs.ModeSymlink != 0 {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		mode := info.Mode().Perm() | 0o444
		if entry.IsDir() || mode&0o100 != 0 {
			mode |= 0o111
		}
		if mode == info.Mode().Perm() {
			return nil
		}
		return os.Chmod(path, mode)
	})
}
