package pubsub

import "context"

// Identity returns the project, and the endpoint if it isn't Google's. It sends no request.
func (b *Broker) Identity(context.Context) ([]string, error) {
	name := "pubsub project " + b.cfg.Project
	if b.cfg.Insecure { // an emulator, which has any project
		name += ", " + b.cfg.Endpoint
	}
	return []string{name}, nil
}
