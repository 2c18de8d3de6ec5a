package relay

import (
	"fmt"
	"log/slog"
	"runtime/debug"
)

// PanicError is what a panic becomes in code that a relay calls: of the Broker, Select, Remedy or the Observer. A log
// shows the stack too. There is no Unwrap: a value may be an error with a mark, such as Unavailable, and the panic is a
// failure of the message all the same.
type PanicError struct {
	Call  string // such as "Broker.Publish"
	Value any    // what recover returned
	Stack []byte
}

func (e *PanicError) Error() string { return fmt.Sprintf("%s panicked: %v", e.Call, e.Value) }

// LogValue is the text of the error, and the stack.
func (e *PanicError) LogValue() slog.Value {
	return slog.StringValue(fmt.Sprintf("%s\n%s", e, e.Stack))
}

// try calls f, and returns its panic.
func try(call string, f func()) (panicked error) {
	defer func() {
		if value := recover(); value != nil {
			panicked = &PanicError{call, value, debug.Stack()}
		}
	}()
	f()
	return nil
}
