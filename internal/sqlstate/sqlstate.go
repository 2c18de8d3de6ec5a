// Package sqlstate reads the error codes of PostgreSQL.
package sqlstate

import "errors"

// Of returns the five characters of the server's code, whichever driver made the error; "" if the error isn't the
// server's.
func Of(err error) string {
	var answered interface{ SQLState() string }
	if errors.As(err, &answered) {
		return answered.SQLState()
	}
	return ""
}
