package servers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Environment variables, explained in the package comment.
const (
	envPostgres      = "OUTBOX_TEST_POSTGRES"
	envKafka         = "OUTBOX_TEST_KAFKA"
	envNATS          = "OUTBOX_TEST_NATS"
	envRedis         = "OUTBOX_TEST_REDIS"
	envRabbitMQ      = "OUTBOX_TEST_RABBITMQ"
	envElasticMQ     = "OUTBOX_TEST_ELASTICMQ"
	envPostgresMajor = "OUTBOX_TEST_POSTGRES_MAJOR"
	envMajors        = "OUTBOX_TEST_MAJORS"
	envCache         = "OUTBOX_CACHE"
	envServers       = "OUTBOX_TEST_SERVERS"
)

// The versions that "make servers" installs.
const (
	KafkaVersion = "4.3.1"
	NATSVersion  = "2.15.2"
	AxeVersion   = "4.14.1"

	// MinJava is the oldest Java that runs that Kafka.
	MinJava = 17

	newestMajor = "18" // of PostgreSQL
)

// PostgresVersions returns the PostgreSQL versions that "make servers" installs, one per major version that pgoutbox
// supports, oldest first.
func PostgresVersions() []string {
	return []string{"14.24.0", "15.19.0", "16.15.0", "17.11.0", "18.6.0"}
}

// ErrNotFound is wrapped by the errors that mean that a server isn't installed.
var ErrNotFound = errors.New("not installed")

// CacheDir returns the folder that holds the servers which were downloaded: OUTBOX_CACHE, else for root
// /var/cache/pgoutbox, since root's PostgreSQL runs as a user that can't enter /root, else pgoutbox in the user's
// cache folder. It need not exist.
func CacheDir() (string, error) {
	if dir := os.Getenv(envCache); dir != "" {
		return filepath.Abs(dir)
	}
	if os.Geteuid() == 0 {
		return "/var/cache/pgoutbox", nil
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find the cache folder: %w; set %s to one", err, envCache)
	}
	return filepath.Join(dir, "pgoutbox"), nil
}

// PostgresDir is where the cache has that version, such as 18.6.0: a folder with bin, lib and share in it.
func PostgresDir(cache, version string) string { return filepath.Join(cache, "postgres-"+version) }

// KafkaDir is where the cache has the jars of Kafka.
func KafkaDir(cache string) string { return filepath.Join(cache, "kafka-"+KafkaVersion, "lib") }

// NATSDir is where the cache has the binary nats-server.
func NATSDir(cache string) string { return filepath.Join(cache, "nats-server-"+NATSVersion) }

// AxeDir is where the cache has axe-core, which finds what keeps people from using a page.
func AxeDir(cache string) string { return filepath.Join(cache, "axe-core-"+AxeVersion) }

// PostgresInstallation is a PostgreSQL on this machine.
type PostgresInstallation struct {
	BinDir  string
	Version string // as the server says: 18.6
}

// FindPostgres returns the folder of the binaries postgres and initdb, and their version (18.6). major is 14 to 18, or
// "" for the newest there is. The error wraps [ErrNotFound] when there is none.
func FindPostgres(major string) (bindir, version string, err error) {
	all, err := PostgresInstallations()
	if err != nil {
		return "", "", err
	}
	var best *PostgresInstallation
	for i, found := range all {
		if major != "" && majorOf(found.Version) != major {
			continue
		}
		if best == nil || compareVersions(found.Version, best.Version) > 0 {
			best = &all[i]
		}
	}
	if best == nil {
		what := "PostgreSQL"
		if major != "" {
			what += " " + major
		}
		return "", "", fmt.Errorf("%s is %w", what, ErrNotFound)
	}
	return best.BinDir, best.Version, nil
}

// PostgresInstallations lists what [FindPostgres] chooses from: the cache, then the machine's places.
func PostgresInstallations() ([]PostgresInstallation, error) {
	cache, err := CacheDir()
	if err != nil {
		return nil, err
	}
	patterns := []string{
		PostgresDir(cache, "*") + "/bin",
		"/usr/lib/postgresql/*/bin",                       // Debian, Ubuntu
		"/usr/pgsql-*/bin",                                // PostgreSQL's own packages for Red Hat
		"/opt/homebrew/opt/postgresql@*/bin",              // macOS on Arm
		"/usr/local/opt/postgresql@*/bin",                 // macOS on Intel
		"/home/linuxbrew/.linuxbrew/opt/postgresql@*/bin", // Homebrew on Linux
	}
	var dirs []string
	for _, pattern := range patterns {
		found, err := filepath.Glob(pattern)
		if err != nil {
			return nil, fmt.Errorf("find PostgreSQL in %s: %w", pattern, err)
		}
		dirs = append(dirs, found...)
	}
	if path, err := exec.LookPath("postgres"); err == nil {
		if real, err := filepath.EvalSymlinks(path); err == nil {
			path = real
		}
		dirs = append(dirs, filepath.Dir(path))
	}
	var all []PostgresInstallation
	for _, dir := range dirs {
		if _, err := os.Stat(executable(dir, "initdb")); err != nil {
			continue
		}
		if slices.ContainsFunc(all, func(i PostgresInstallation) bool { return i.BinDir == dir }) {
			continue
		}
		if inCache := cachedVersion.FindStringSubmatch(filepath.Base(filepath.Dir(dir))); inCache != nil {
			all = append(all, PostgresInstallation{BinDir: dir, Version: inCache[1]}) // without asking: it takes its time
		} else if version, err := versionOf(executable(dir, "postgres")); err == nil {
			all = append(all, PostgresInstallation{BinDir: dir, Version: version})
		}
	}
	return all, nil
}

// FindKafka returns a Java and the folder of Kafka's jars. The error wraps [ErrNotFound] when one of them is missing,
// and says which.
func FindKafka() (java, lib string, err error) {
	return findJars("Kafka", KafkaDir, "kafka_*.jar")
}

// findJars returns a Java and the cache's folder of a program's jars.
func findJars(program string, dir func(cache string) string, pattern string) (java, lib string, err error) {
	cache, err := CacheDir()
	if err != nil {
		return "", "", err
	}
	lib = dir(cache)
	if jars, _ := filepath.Glob(filepath.Join(lib, pattern)); len(jars) == 0 {
		return "", "", fmt.Errorf("%s is %w", program, ErrNotFound)
	}
	java, err = FindJava()
	return java, lib, err
}

// javaArgs returns the arguments of Java, up to the main class. most is the memory that it may take, 512 MB for bench.
func javaArgs(folder, lib, most string, bench bool) []string {
	args := []string{"-Xms64m", "-Xmx" + most}
	if bench {
		args = []string{"-Xms512m", "-Xmx512m"}
	}
	// What Java unpacks and counts goes with the folder, even when the server is killed.
	return append(args, "-XX:+UseSerialGC", "-Djava.io.tmpdir="+folder, "-XX:-UsePerfData", "-cp", filepath.Join(lib, "*"))
}

// FindJava returns a Java of [MinJava] or later. The error wraps [ErrNotFound] when there is none.
func FindJava() (string, error) {
	var candidates []string
	if home := os.Getenv("JAVA_HOME"); home != "" {
		candidates = append(candidates, executable(filepath.Join(home, "bin"), "java"))
	}
	if path, err := exec.LookPath("java"); err == nil {
		candidates = append(candidates, path)
	}
	tooOld := ""
	for _, java := range candidates {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		out, err := exec.CommandContext(ctx, java, "-version").CombinedOutput()
		cancel()
		if err != nil {
			continue // macOS has a java that only says that there is none
		}
		version := quotedVersion.FindStringSubmatch(string(out))
		if version == nil {
			continue
		}
		if major, err := strconv.Atoi(majorOf(version[1])); err == nil && major >= MinJava {
			return java, nil
		}
		tooOld = fmt.Sprintf(" (%s is version %s)", java, version[1])
	}
	return "", fmt.Errorf("Java %d or later, which Kafka needs, is %w%s", MinJava, ErrNotFound, tooOld)
}

// FindNATS returns the path of the binary nats-server: the cache's, else one of version 2.10 or later on PATH. The
// error wraps [ErrNotFound] when there is none.
func FindNATS() (string, error) {
	cache, err := CacheDir()
	if err != nil {
		return "", err
	}
	path := executable(NATSDir(cache), "nats-server")
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	if path, err = exec.LookPath("nats-server"); err == nil {
		if version, err := versionOf(path); err == nil && compareVersions(version, "2.10") >= 0 {
			return path, nil
		}
	}
	return "", fmt.Errorf("nats-server is %w", ErrNotFound)
}

var (
	cachedVersion = regexp.MustCompile(`^postgres-(\d+\.\d+)\.0$`)
	dottedVersion = regexp.MustCompile(`\d+(\.\d+)+`)
	quotedVersion = regexp.MustCompile(`version "(\d+[^"]*)"`)
)

// versionOf asks a binary: "postgres (PostgreSQL) 15.13 (Debian 15.13-0+deb12u1)", "nats-server: v2.15.2".
func versionOf(path string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, path, "--version").Output()
	if err != nil {
		return "", err
	}
	version := dottedVersion.FindString(string(out))
	if version == "" {
		return "", fmt.Errorf("%s --version says %q", path, out)
	}
	return version, nil
}

func majorOf(version string) string {
	major, _, _ := strings.Cut(version, ".")
	return major
}

func compareVersions(a, b string) int {
	numbers := func(version string) (all []int) {
		for part := range strings.SplitSeq(version, ".") {
			n, err := strconv.Atoi(part)
			if err != nil {
				break
			}
			all = append(all, n)
		}
		return all
	}
	return slices.Compare(numbers(a), numbers(b))
}

// lookUp returns the path of the first of these programs that is there, "" if none is.
func lookUp(names ...string) string {
	for _, name := range names {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	return ""
}

func executable(dir, name string) string {
	if runtime.GOOS == "windows" {
		name += ".exe"
	}
	return filepath.Join(dir, name)
}
