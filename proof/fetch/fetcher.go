package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"

	"github.com/pgoutbox/outbox/demo/pgfetch"
	"github.com/pgoutbox/outbox/internal/servers"
)

// fetcher fetches into a cache folder.
type fetcher struct {
	cache    string
	progress io.Writer
}

func postgres(version string) target {
	return target{"postgres@" + version, func(f fetcher, ctx context.Context) error {
		return pgfetch.Fetch(ctx, version, servers.PostgresDir(f.cache, version), f.progress)
	}}
}

// kafkaProject is a Maven project of which only the dependencies are wanted. Without log4j-slf4j-impl, Kafka logs
// nothing.
const kafkaProject = `<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
 <groupId>pgoutbox</groupId><artifactId>kafka</artifactId><version>1</version><packaging>pom</packaging>
 <dependencies>
  <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>` + servers.KafkaVersion + `</version></dependency>
  <dependency><groupId>org.apache.logging.log4j</groupId><artifactId>log4j-slf4j-impl</artifactId><version>2.25.4</version></dependency>
 </dependencies>
</project>
`

func (f fetcher) kafka(ctx context.Context) error {
	lib := servers.KafkaDir(f.cache)
	jars, err := filepath.Glob(filepath.Join(lib, "kafka_*.jar"))
	if err != nil {
		return err
	}
	_, noJava := servers.FindJava()
	if len(jars) > 0 && noJava == nil {
		return nil
	}
	_, noMaven := exec.LookPath("mvn")
	if len(jars) > 0 {
		noMaven = nil // not needed any more
	}
	if noJava != nil || noMaven != nil {
		if err := f.installJava(ctx); err != nil {
			return fmt.Errorf("fetch Kafka: %w", err)
		}
	}
	if len(jars) > 0 {
		return nil
	}
	return f.install("Kafka "+servers.KafkaVersion, lib, func(work string) error {
		project := filepath.Join(work, "pom.xml")
		if err := os.WriteFile(project, []byte(kafkaProject), 0o644); err != nil {
			return err
		}
		fmt.Fprintf(f.progress, "Kafka %s: downloading 44 MB\n", servers.KafkaVersion)
		return f.run(ctx, work, nil, "mvn", "-q", "-B", "-Dstyle.color=never", "dependency:copy-dependencies",
			"-DincludeScope=runtime", "-DoutputDirectory="+filepath.Join(work, "out"))
	})
}

// installJava installs Java and Maven where that takes no more than a command, and says what to do elsewhere.
func (f fetcher) installJava(ctx context.Context) error {
	apt, err := exec.LookPath("apt-get")
	if err != nil || os.Geteuid() != 0 {
		advice := "on Debian and Ubuntu: sudo apt-get install maven openjdk-17-jre-headless"
		if runtime.GOOS == "darwin" {
			advice = "brew install maven openjdk, and set JAVA_HOME to $(brew --prefix openjdk)"
		}
		return fmt.Errorf("it takes Maven (mvn) and Java %d or later; %s", servers.MinJava, advice)
	}
	fmt.Fprintln(f.progress, "Kafka: installing Maven and Java with apt-get")
	quiet := append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
	if err := f.run(ctx, "", quiet, apt, "install", "-y", "-q", "maven", "openjdk-17-jre-headless"); err != nil {
		return fmt.Errorf("%w; if no such package was found, run apt-get update first", err)
	}
	_, err = servers.FindJava()
	return err
}

func (f fetcher) nats(ctx context.Context) error {
	dir := servers.NATSDir(f.cache)
	if path, err := servers.FindNATS(); err == nil && filepath.Dir(path) == dir {
		return nil
	}
	return f.install("nats-server "+servers.NATSVersion, dir, func(work string) error {
		fmt.Fprintf(f.progress, "nats-server %s: building\n", servers.NATSVersion)
		// In a folder outside of every module, with the flags and the workspace of none.
		env := append(os.Environ(), "GOBIN="+filepath.Join(work, "out"), "GOWORK=off", "GOFLAGS=", "GOOS=", "GOARCH=")
		return f.run(ctx, work, env, "go", "install", "-trimpath", "github.com/nats-io/nats-server/v2@v"+servers.NATSVersion)
	})
}

// install has fill put files into the folder out of a work folder, and moves that to dir in one step.
func (f fetcher) install(what, dir string, fill func(work string) error) error {
	if err := pgfetch.Install(dir, fill); err != nil {
		return fmt.Errorf("fetch %s: %w", what, err)
	}
	fmt.Fprintf(f.progress, "%s: installed in %s\n", what, dir)
	return nil
}

// run runs a program; what it writes is progress.
func (f fetcher) run(ctx context.Context, dir string, env []string, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = env
	cmd.Stdout, cmd.Stderr = f.progress, f.progress
	if err := cmd.Run(); err != nil {
		return errors.Join(fmt.Errorf("%s %s: %w", name, args[0], err), ctx.Err())
	}
	return nil
}
