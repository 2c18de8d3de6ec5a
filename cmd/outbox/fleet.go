package main

import "github.com/spf13/cobra"

func (a *app) fleetCommand() *cobra.Command {
	return group(&cobra.Command{
		Use:   "fleet",
		Short: "Plan the databases of all relays",
	}, a.fleetPlanCommand())
}
