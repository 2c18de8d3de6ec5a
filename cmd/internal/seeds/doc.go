// Package seeds holds the acceptance of outboxes that people have: tables as articles on the pattern lay them
// out, writers with the statements of their authors, and the relay with nothing but a preset between them
// and the broker. Each runs by itself:
//
//	go test ./internal/seeds -run TestSeed0
package seeds
