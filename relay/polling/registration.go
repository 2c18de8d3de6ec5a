package polling

// Registration is a running relay.
type Registration struct{ name string }

// Name is the relay's name.
func (r *Registration) Name() string { return r.name }
