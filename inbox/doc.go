// Package inbox makes the effect of a message happen exactly once, although messages are delivered at least once.
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
// One transaction records that the message is applied and makes the effect, so either both are there or neither is. A
// repeat finds the record and runs nothing. The guarantee covers effects in this database. It covers repeats within the
// window of the records ([Retention]), seven days by default, and without limit messages that carry a sequence number
// ([Config.Gaps]).
//
// docs/inbox.md describes it for users.
package inbox
