package main

import (
	"encoding/base64"
	"io"
	"os"
	"strings"

	"github.com/pgoutbox/outbox/admin/verbs"
	"github.com/pgoutbox/outbox/cmd/internal/exit"
	"github.com/pgoutbox/outbox/cmd/internal/output"
)

func refusePayloads(params any, out output.Format) error {
	if params.(*verbs.DeadList).Payload && out == output.AsTable {
		return exit.Usagef("payloads don't fit into a table: add -o json or -o jsonl, or use: outbox dead show --payload ID")
	}
	return nil
}

// readPayload reads the file of --payload @FILE.
func (a *app) readPayload(params any, _ output.Format) error {
	p := params.(*verbs.DeadEdit)
	file, given := strings.CutPrefix(p.Payload, "@")
	if !given {
		return nil
	}
	content, err := a.readInput(file)
	if err != nil {
		return exit.Usagef("--payload: %w", err)
	}
	p.Payload, p.PayloadBytes = "", base64.StdEncoding.EncodeToString(content)
	return nil
}

// readInput reads a file, or standard input for "-".
func (a *app) readInput(file string) ([]byte, error) {
	if file == "-" {
		return io.ReadAll(a.Stdin)
	}
	return os.ReadFile(file)
}
