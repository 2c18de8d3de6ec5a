// Package seeds holds outboxes that people have: tables as articles on the pattern lay them out, writers with the
// statements of their authors, and the relay with nothing but a preset between them and the broker. Its tests are their
// acceptance; make order has the same with many more messages, and the nemesis breaks things around them.
//
//	go test ./internal/seeds -run TestEverySystemKeepsItsOrder/outbox/
package seeds
