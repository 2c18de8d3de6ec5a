package main

import (
	"bytes"
	"encoding/gob"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/pgoutbox/outbox/internal/child"
	"github.com/pgoutbox/outbox/proof/rig"
)

// process is a contender, or the load. What it writes to standard error is taken for a log of JSON lines.
type process struct {
	rig.Child
	out *gob.Decoder
	dir string // of its own, removed when it is stopped
	end sync.Once
}

// startProcess starts a program. The folder that has its log, and that it may have files in, becomes its own.
func startProcess(name, dir, program string, args ...string) (*process, error) {
	command := child.Command{Path: program, Args: args, LogFile: filepath.Join(dir, "log"), Piped: true}
	p := &process{dir: dir, Child: rig.Child{Name: name, Command: command}}
	if err := p.Start(); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	p.out = gob.NewDecoder(p.Out)
	return p, nil
}

// ownFolder is a folder for a process, with files in it: their contents by their names.
func ownFolder(files map[string]string) (dir string, err error) {
	if dir, err = os.MkdirTemp("", "pgoutbox-bench-"); err != nil {
		return "", err
	}
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err = os.MkdirAll(filepath.Dir(path), 0o700); err == nil {
			err = os.WriteFile(path, []byte(text), 0o600)
		}
		if err != nil {
			return "", errors.Join(err, os.RemoveAll(dir))
		}
	}
	return dir, nil
}

// began reports when the process began to work, by its log, and whether it has.
func (p *process) began() (time.Time, bool) {
	text, _ := p.Life() // what can't be read has nothing in it yet
	for line := range bytes.Lines(text) {
		var record struct {
			Msg  string    `json:"msg"`
			Time time.Time `json:"time"`
		}
		if json.Unmarshal(line, &record) == nil && (record.Msg == "lease acquired" || record.Msg == "started") {
			return record.Time, true
		}
	}
	return time.Time{}, false
}

// ended returns an error if the process has ended by itself.
func (p *process) ended() error {
	if !p.Running() {
		return p.failure(errors.New("it ended too early"))
	}
	return nil
}

// failure adds the end of the log to an error.
func (p *process) failure(err error) error {
	return fmt.Errorf("%s: %w; its log ends with:\n%s", p.Name, err, p.Log())
}

// cpuNow is the CPU time that the process has used so far, in seconds.
func (p *process) cpuNow() float64 {
	return rig.CPU(p.PID())
}

// stop ends the process in good order, or otherwise if that takes long.
func (p *process) stop() {
	p.end.Do(func() {
		_ = p.Stop(20 * time.Second) // what it delivered is checked
		_ = os.RemoveAll(p.dir)      // small files in the temporary folder
	})
}
