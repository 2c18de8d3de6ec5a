package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"

	"github.com/pgoutbox/outbox/internal/servers"
)

// packaged is a server that is a package of the system. It is installed if one command is enough for that; elsewhere
// the error says what to do.
func packaged(title, deb string, find func() (string, error)) target {
	name := strings.ToLower(title) // with Homebrew, too
	return target{name, func(f fetcher, ctx context.Context) error {
		_, missing := find()
		if missing == nil || !errors.Is(missing, servers.ErrNotFound) {
			return missing
		}
		install, err := f.apt(missing, deb+", and disable the service that comes with it if you don't want it", name)
		if err != nil {
			return fmt.Errorf("fetch %s: %w", title, err)
		}
		fmt.Fprintf(f.progress, "%s: installing %s with apt-get\n", title, deb)
		lift, err := forbidServices(policyFile)
		if err == nil {
			err = errors.Join(install(ctx, "--no-install-recommends", deb), lift())
		}
		if err != nil {
			return fmt.Errorf("fetch %s: %w", title, err)
		}
		_, err = find()
		return err
	}, title, find}
}

// apt returns a function that installs packages of the system, if one command is enough for that. Otherwise it returns
// an error: what is missing, and what to do on Debian and with Homebrew.
func (f fetcher) apt(missing error, deb, brew string) (install func(ctx context.Context, args ...string) error, err error) {
	apt, err := exec.LookPath("apt-get")
	if err != nil || os.Geteuid() != 0 {
		advice := "on Debian and Ubuntu: sudo apt-get install " + deb
		if runtime.GOOS == "darwin" {
			advice = "brew install " + brew
		}
		return nil, fmt.Errorf("%w; %s", missing, advice)
	}
	return func(ctx context.Context, args ...string) error {
		quiet := append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		install := append([]string{"install", "-y", "-q"}, args...)
		if err := f.run(ctx, "", quiet, apt, install...); err == nil {
			return nil
		}
		// The list of packages may be missing, or too old for what the mirror still has.
		if err := f.run(ctx, "", quiet, apt, "update", "-q"); err != nil {
			return err
		}
		return f.run(ctx, "", quiet, apt, install...)
	}, nil
}

// policyFile is the program that Debian's packages ask before they start a service.
const policyFile = "/usr/sbin/policy-rc.d"

// forbidServices prevents newly installed packages from starting services, until lift is called: the tests start
// servers of their own, on other ports. An existing policy is kept.
func forbidServices(policy string) (lift func() error, err error) {
	file, err := os.OpenFile(policy, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if errors.Is(err, os.ErrExist) {
		return func() error { return nil }, nil
	}
	if err != nil {
		return nil, err
	}
	_, err = file.WriteString("#!/bin/sh\nexit 101\n")
	if err = errors.Join(err, file.Close()); err != nil {
		return nil, errors.Join(err, os.Remove(policy))
	}
	return func() error { return os.Remove(policy) }, nil
}
