from lifcal.cli import main

main()
