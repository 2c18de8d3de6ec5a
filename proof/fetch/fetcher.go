package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/pgoutbox/outbox/demo/pgfetch"
	"github.com/pgoutbox/outbox/internal/servers"
)

// fetcher fetches into a cache folder.
type fetcher struct {
	cache    string
	progress io.Writer
}

func postgres(version string) target {
	return target{name: "postgres@" + version, fetch: func(f fetcher, ctx context.Context) error {
		return pgfetch.Fetch(ctx, version, servers.PostgresDir(f.cache, version), f.progress)
	}}
}

func (f fetcher) kafka(ctx context.Context) error {
	// Without log4j-slf4j-impl, Kafka logs nothing.
	return f.jars(ctx, "Kafka", servers.KafkaVersion, servers.KafkaDir(f.cache), "kafka_*.jar", 44,
		"org.apache.kafka:kafka_2.13:"+servers.KafkaVersion, "org.apache.logging.log4j:log4j-slf4j-impl:2.25.4")
}

func (f fetcher) elasticMQ(ctx context.Context) error {
	return f.jars(ctx, "ElasticMQ", servers.ElasticMQVersion, servers.ElasticMQDir(f.cache), "elasticmq-server_*.jar", 43,
		"org.elasticmq:elasticmq-server_3:"+servers.ElasticMQVersion)
}

// jars installs Maven artifacts with their dependencies, and Java if there is none. A file that matches pattern shows
// that they are installed. size is in MB.
func (f fetcher) jars(ctx context.Context, what, version, lib, pattern string, size int, artifacts ...string) error {
	jars, err := filepath.Glob(filepath.Join(lib, pattern))
	if err != nil {
		return err
	}
	_, noJava := servers.FindJava()
	_, noMaven := exec.LookPath("mvn")
	if noJava != nil || noMaven != nil && len(jars) == 0 {
		if err := f.installJava(ctx); err != nil {
			return fmt.Errorf("fetch %s: %w", what, err)
		}
	}
	if len(jars) > 0 {
		return nil
	}
	return f.install(what+" "+version, lib, func(work string) error {
		fmt.Fprintf(f.progress, "%s %s: downloading %d MB\n", what, version, size)
		return f.copyJars(ctx, work, filepath.Join(work, "out"), artifacts)
	})
}

// copyJars downloads Maven artifacts with their dependencies into a folder.
func (f fetcher) copyJars(ctx context.Context, work, into string, artifacts []string) error {
	// This project exists only for its dependencies.
	project := `<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
 <groupId>pgoutbox</groupId><artifactId>fetched</artifactId><version>1</version><packaging>pom</packaging><dependencies>
`
	for _, artifact := range artifacts {
		of := strings.Split(artifact, ":")
		project += fmt.Sprintf("<dependency><groupId>%s</groupId><artifactId>%s</artifactId><version>%s</version></dependency>\n",
			of[0], of[1], of[2])
	}
	if err := os.WriteFile(filepath.Join(work, "pom.xml"), []byte(project+"</dependencies></project>\n"), 0o644); err != nil {
		return err
	}
	return f.maven(ctx, work, "dependency:copy-dependencies", "-DincludeScope=runtime", "-DoutputDirectory="+into)
}

// installJava installs Java and Maven if one command is enough for that, and otherwise says what to do.
func (f fetcher) installJava(ctx context.Context) error {
	const maven, java = "maven", "openjdk-17-jre-headless"
	missing := fmt.Errorf("it takes Maven (mvn) and Java %d or later", servers.MinJava)
	install, err := f.apt(missing, maven+" "+java, "maven openjdk, and set JAVA_HOME to $(brew --prefix openjdk)")
	if err != nil {
		return err
	}
	fmt.Fprintln(f.progress, "installing Maven and Java with apt-get")
	if err := install(ctx, maven, java); err != nil {
		return err
	}
	_, err = servers.FindJava()
	return err
}

func (f fetcher) nats(ctx context.Context) error {
	dir := servers.NATSDir(f.cache)
	if path, err := servers.FindNATS(); err == nil && filepath.Dir(path) == dir {
		return nil
	}
	return f.built(ctx, "nats-server", servers.NATSVersion, dir, "github.com/nats-io/nats-server/v2")
}

// moto installs moto with what its SNS and SQS need; moto[server] would be four times as large.
func (f fetcher) moto(ctx context.Context) error {
	if _, _, err := servers.FindMoto(); err == nil {
		return nil
	}
	python, err := exec.LookPath("python3")
	if err != nil {
		return fmt.Errorf("fetch moto: it takes python3 with pip: %w; on Debian and Ubuntu: sudo apt-get install python3-pip", err)
	}
	return f.install("moto "+servers.MotoVersion, servers.MotoDir(f.cache), func(work string) error {
		fmt.Fprintf(f.progress, "moto %s: downloading 30 MB\n", servers.MotoVersion)
		return f.pip(ctx, python, filepath.Join(work, "out"), "moto=="+servers.MotoVersion, "flask==3.1.3", "flask-cors==6.0.5")
	})
}

// readers installs official libraries for Node, Python and Java, with which tests and pages read what is sent.
func (f fetcher) readers(ctx context.Context) error {
	if _, err := servers.FindReaders(); err == nil {
		return nil
	}
	npm, noNode := exec.LookPath("npm")
	python, noPython := exec.LookPath("python3")
	if noNode != nil || noPython != nil {
		return fmt.Errorf("fetch readers: it takes Node (npm) and python3 with pip; on Debian and Ubuntu: sudo apt-get " +
			"install npm python3-pip")
	}
	_, noMaven := exec.LookPath("mvn")
	if _, noJava := servers.FindJava(); noJava != nil || noMaven != nil {
		if err := f.installJava(ctx); err != nil {
			return fmt.Errorf("fetch readers: %w", err)
		}
	}
	return f.install("readers", servers.ReadersDir(f.cache), func(work string) error {
		fmt.Fprintln(f.progress, "readers: downloading 95 MB")
		out := filepath.Join(work, "out")
		if err := os.Mkdir(out, 0o755); err != nil {
			return err
		}
		err := f.run(ctx, out, nil, npm, append([]string{"install", "--no-audit",
			"--no-fund", "--no-save", "--no-package-lock", "--ignore-scripts", "--silent"}, servers.ReadersNode...)...)
		if err != nil {
			return err
		}
		if err := f.pip(ctx, python, filepath.Join(out, "python"), servers.ReadersPython...); err != nil {
			return err
		}
		return f.copyJars(ctx, work, filepath.Join(out, "java"), servers.ReadersJava)
	})
}

// pip installs Python's packages into a folder.
func (f fetcher) pip(ctx context.Context, python, into string, packages ...string) error {
	return f.run(ctx, "", nil, python, append([]string{"-m", "pip", "install", "--quiet", "--no-compile", "--only-binary", ":all:",
		"--disable-pip-version-check", "--root-user-action", "ignore", "--target", into}, packages...)...)
}

// maven runs one of Maven's goals.
func (f fetcher) maven(ctx context.Context, dir string, args ...string) error {
	return f.run(ctx, dir, nil, "mvn", append([]string{"-q", "-B", "-Dstyle.color=never"}, args...)...)
}

// install calls fill to put files into a work folder, and moves that to dir in one step.
func (f fetcher) install(what, dir string, fill func(work string) error) error {
	if err := pgfetch.Install(dir, fill); err != nil {
		return fmt.Errorf("fetch %s: %w", what, err)
	}
	fmt.Fprintf(f.progress, "%s: installed in %s\n", what, dir)
	return nil
}

// run runs a program; its output is progress.
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
