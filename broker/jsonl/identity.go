package jsonl

import (
	"context"
	"path/filepath"
)

// Identity returns the path of the file or of the archive's directory, and nothing for standard output. It opens
// nothing.
func (b *Broker) Identity(context.Context) ([]string, error) {
	kind, path := "", ""
	switch s := b.sink.(type) {
	case *file:
		kind, path = "file ", s.path
	case *archive:
		kind, path = "archive ", s.dir
	default:
		return nil, nil
	}
	absolute, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	return []string{kind + absolute}, nil
}
