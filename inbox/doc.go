// Package inbox makes the effect of a message happen exactly once, although messages are delivered at
// least once.
//
//	box, err := inbox.New("payments", inbox.Config{})
//	...
//	result, err := box.Handle(ctx, pool, &msg, func(ctx context.Context, tx pgx.Tx, msg *outbox.Message) error {
//		_, err := tx.Exec(ctx, `UPDATE orders SET paid = true WHERE id = $1`, msg.Key)
//		return err
//	})
//	if err == nil {
//		msg.Ack() // applied, now or before
//	}
//
// One transaction records that the message is applied and makes the effect, so both are there or neither.
// A repeat finds the record and runs nothing. The guarantee holds for effects in this database. It holds
// for repeats that come within the window of the records ([Retention]), seven days unless told otherwise,
// and without end for messages that carry a sequence number ([Config.Gaps]).
//
// docs/inbox.md is the page about it.
package inbox
