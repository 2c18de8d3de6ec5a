package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/pgoutbox/outbox/internal/servers"
)

// elasticMQProject is a Maven project of which only the dependencies are wanted.
const elasticMQProject = `<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
 <groupId>pgoutbox</groupId><artifactId>elasticmq</artifactId><version>1</version><packaging>pom</packaging>
 <dependencies>
  <dependency><groupId>org.elasticmq</groupId><artifactId>elasticmq-server_3</artifactId><version>` + servers.ElasticMQVersion + `</version></dependency>
 </dependencies>
</project>
`

func (f fetcher) elasticMQ(ctx context.Context) error {
	if _, _, err := servers.FindElasticMQ(); err == nil {
		return nil
	}
	_, noJava := servers.FindJava()
	_, noMaven := exec.LookPath("mvn")
	if noJava != nil || noMaven != nil {
		if err := f.installJava(ctx); err != nil {
			return fmt.Errorf("fetch ElasticMQ: %w", err)
		}
	}
	return f.install("ElasticMQ "+servers.ElasticMQVersion, servers.ElasticMQDir(f.cache), func(work string) error {
		project := filepath.Join(work, "pom.xml")
		if err := os.WriteFile(project, []byte(elasticMQProject), 0o644); err != nil {
			return err
		}
		fmt.Fprintf(f.progress, "ElasticMQ %s: downloading 43 MB\n", servers.ElasticMQVersion)
		return f.run(ctx, work, nil, "mvn", "-q", "-B", "-Dstyle.color=never", "dependency:copy-dependencies",
			"-DincludeScope=runtime", "-DoutputDirectory="+filepath.Join(work, "out"))
	})
}

// moto installs moto with what its SNS and SQS need; with moto[server] it would be four times as large.
func (f fetcher) moto(ctx context.Context) error {
	if _, _, err := servers.FindMoto(); err == nil {
		return nil
	}
	python, err := exec.LookPath("python3")
	if err != nil {
		return fmt.Errorf("fetch moto: it takes python3 with pip: %w", err)
	}
	return f.install("moto "+servers.MotoVersion, servers.MotoDir(f.cache), func(work string) error {
		fmt.Fprintf(f.progress, "moto %s: downloading 30 MB\n", servers.MotoVersion)
		return f.run(ctx, work, nil, python, "-m", "pip", "install", "--quiet", "--no-compile", "--only-binary", ":all:",
			"--disable-pip-version-check", "--root-user-action", "ignore", "--target", filepath.Join(work, "out"),
			"moto=="+servers.MotoVersion, "flask==3.1.3", "flask-cors==6.0.5")
	})
}
