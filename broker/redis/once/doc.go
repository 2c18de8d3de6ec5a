// Package once keeps effects outside the database from being repeated, by a note in Redis that lasts for some time.
//
//	cache, err := once.New("mailer", client, once.Config{})
//	// for every message that the broker delivers:
//	_, err = cache.Handle(ctx, &msg, func(ctx context.Context, msg *outbox.Message) error {
//		return mail.Send(ctx, msg.Payload)
//	})
//	if err == nil {
//		ack()
//	}
//
// # What is promised, and what is not
//
// This is at-least-once with fewer repeats, not exactly-once. Package inbox makes record and effect one transaction;
// here they are in two systems, and nothing can make them one. If the effect can be in PostgreSQL, use package inbox.
//
//   - A message is never skipped without its effect. It is claimed before the handler runs and marked as done after the
//     handler has returned nil. A claim that isn't marked, because the process died, expires after Config.Lease, and
//     the message has its effect when it is delivered again.
//   - An effect happens again if a process dies between the effect and the mark, and the message comes again. So give
//     the other side the message's id, if it can use one.
//   - An effect happens again if the message comes again after Config.Window, or after Redis has lost the mark: by a
//     restart without persistence, by eviction (maxmemory-policy other than noeviction), or in a failover to a replica
//     that did not have it yet.
//   - Two handlers of one message don't run at once while Redis answers. A claim is renewed as long as its handler
//     runs. If that fails for the length of a Lease, or another process has the claim, the handler's context ends. A
//     handler that ignores its context may run beside another.
//   - While Redis doesn't answer, no handler begins: Handle returns an error that is marked by outbox.Unavailable.
package once
